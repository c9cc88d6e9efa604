"""A whole measurement of emulated devices: real ranks under torchrun, real DDP over gloo, layers that sleep."""

import dataclasses
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tasks.measuring import advice
from tasks.measuring.arms import (
    WRAPPED,
    Cell,
    make_data_arms,
    make_spreading_arms,
    make_trained_arm,
    make_wrapped_arm,
)
from tasks.measuring.bench import Bench
from tasks.measuring.session import count_all_trained, has_room
from tasks.measuring.turns import TimedTurns, generate_turns
from tasks.process.failure import DistributedError, PreemptedError
from tests.emulator.device import EmulatedDevice, write_device
from tests.emulator.measuring import emulated_params, emulated_ranks, measure_device
from tests.machines import make_machine
from tests.processes import list_named, read_words

pytestmark = pytest.mark.slow

_alone = pytest.mark.alone
"""What it holds is told by seconds; the others hold whoever runs beside them."""

DEVICE = EmulatedDevice(
    forward_ms=1.0, num_layers=3, parameters_per_layer=2048, gradient_mib_per_layer=25.0, link_latency_ms=10.0
)
"""9 ms per micro-batch and 3 buckets of 10 ms: what two of them lose is communication, however busy the machine is."""
MEASURE = {
    "max_seconds": 1, "burn_in_seconds": 0, "block_seconds": 0.04, "advice_seconds": 60, "others_share": 1,
    "waterfall_seconds": 2,
}  # fmt: skip
"""Advice ends before that, once it is sure."""
PARAMS = emulated_params([1, 2], **MEASURE)
TWO = Cell(name="2dev", strategy="ddp", world_size=2, global_batch_size=4)
MICRO_BATCHES, ONE_BUCKET = "micro-batches of 2 samples instead of 1", "one bucket for all gradients"


@pytest.fixture(scope="module")
def measured(tmp_path_factory, warm):
    """One and two devices, on a machine with four; of all changes two are tried."""
    folder, list_all = tmp_path_factory.mktemp("emulated"), advice.list_knobs

    def list_two(*given, **named):
        return [knob for knob in list_all(*given, **named) if knob.change in (MICRO_BATCHES, ONE_BUCKET)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm / "python"))
        patch.setattr(advice, "list_knobs", list_two)
        return measure_device(DEVICE, PARAMS, folder=folder, num_devices=4)


@_alone
def test_every_cell_is_timed_in_the_same_turns_over_several_starts_and_rates_are_counted_work_over_time(measured):
    assert [(name, one.num_blocks, len(one.step_p50_seconds)) for name, one in measured.speeds.items()] == [
        ("1dev", measured.num_turns, 1), ("2dev", measured.num_turns, 2)
    ]  # fmt: skip
    assert measured.num_launches == 3, "as many as an interval needs, since the time is short"
    launches = [[block.launch for block in arm.blocks] for arm in measured.blocks if arm.phase == "speedup"]
    assert launches[0] == launches[1] == sorted(launches[0])
    assert set(launches[0]) == {1, 2, 3}
    assert {block.launch for arm in measured.blocks if arm.phase == "waterfall" for block in arm.blocks} == {3}
    assert (list(measured.speedups), f"1dev{WRAPPED}" in measured.beside) == (["2dev"], True)
    for arm in measured.speeds.values():
        # Rows of 8 tokens without padding: 7 are learned from.
        assert arm.tokens_per_second == pytest.approx(7 * arm.samples_per_second)
        assert arm.padded_tokens_per_second == pytest.approx(8 * arm.samples_per_second)
        assert arm.samples_per_second * arm.step_seconds.value == pytest.approx(4, rel=0.5)
    # What is foretold is of a GPU alone.
    assert [(one.cell, one.device, one.predicted, len(one.ranks)) for one in measured.memory] == [
        ("1dev", "cpu", None, 1), ("2dev", "cpu", None, 2)
    ]  # fmt: skip
    assert all(rank.allocated_gib == rank.parts.total > 0 for one in measured.memory for rank in one.ranks)


@_alone
def test_what_two_devices_lose_is_named_and_their_link_is_a_line(measured):
    (fall,) = measured.waterfalls
    largest = max(fall.parts, key=lambda part: part.seconds.value)
    assert (fall.cell, fall.is_data_bound, largest.name) == ("2dev", False, "exposed communication")
    (link,) = measured.links
    assert (link.world_size, link.kind, link.is_slept_for) == (2, "all_reduce", True)
    # An emulated link sleeps for its latency, and for the bytes.
    assert link.latency_seconds == pytest.approx(10e-3, rel=0.3)
    assert link.seconds_per_byte is not None


@_alone
def test_advice_says_what_to_write_puts_the_best_first_and_tries_what_helps_together_too(measured):
    # Three exchanges of 10 ms in a step beside two micro-batches of 9 ms: one exchange, and one micro-batch.
    assert [(one.change, one.patch, one.verdict) for one in measured.advice.tried] == [
        (ONE_BUCKET, "cells:\n  2dev:\n    options: {bucket_mib: 75.0}", "recommended"),
        (MICRO_BATCHES, "train:\n  micro_batch_size: 2", "recommended"),
    ]
    gains = [one.gain.value for one in (measured.advice.combined, *measured.advice.tried)]
    assert gains == sorted(gains, reverse=True)


@pytest.fixture
def stop():
    """What a signal to the stage sets."""
    return threading.Event()


@pytest.fixture
def waiting(tmp_path, stop, starts_warm):
    """Two ranks that wait for blocks."""
    with emulated_ranks(emulated_params([2]), folder=tmp_path, device=DEVICE, stop=stop) as workers:
        yield workers["2dev"]


def test_ranks_that_wait_use_no_processor_and_where_memory_holds_one_variant_each_is_built_at_its_turn(
    waiting, tmp_path
):
    waiting.ask("facts")
    ranks = [_rank(0, tmp_path), _rank(1, tmp_path)]
    before = [sum(one.cpu_times()[:2]) for one in ranks]
    time.sleep(0.5)
    # Whoever waits in circles uses nearly all of it.
    assert [sum(one.cpu_times()[:2]) for one in ranks] == pytest.approx(before, abs=0.15)
    bench = Bench({"2dev": waiting}, seed=1, holds_all=False)
    arms = [make_trained_arm(TWO), *make_spreading_arms(TWO)]
    bench.build(arms)
    assert all(bench.facts(arm)[0]["num_steps"] == 16 for arm in arms)
    timed_turns = TimedTurns()
    bench.run_turn(arms, generate_turns([arm.name for arm in arms], seed=1), timed_turns)
    # Four rows of 7 learned tokens in a step, two where one rank runs alone, none in an update.
    found = [[block.num_tokens for block in timed_turns.blocks[arm.name]] for arm in arms]
    assert found == [[28], [28], [28], [14], [0]]


def test_room_is_counted_with_every_copy_and_its_optimizer(caplog):
    cells = [dataclasses.replace(TWO, name="1dev", strategy="single", world_size=1), TWO]
    beside = [make_wrapped_arm(cells[0]), *make_data_arms(TWO, has_copy=True), *make_spreading_arms(TWO)]
    arms = [*map(make_trained_arm, cells), *beside]

    def fits(num_parameters, device, **machine):
        return has_room(arms, cells, make_machine(**machine), device=device, held=count_all_trained(num_parameters))

    assert fits(10**6, "cpu")
    assert not fits(10**12, "cpu")
    # The plain process, the wrapped one; the two, without communication, and as copies of their own. Weights and
    # moments are there twice, 12 bytes of each parameter, and 5 gradients.
    assert not fits(494_032_768, "cuda", num_gpus=2)
    assert "20.2 GiB, 15.0" in caplog.text
    assert fits(494_032_768, "cuda", num_gpus=2, memory_gib=40.0)
    # On one GPU both ranks of the larger cell are there: 12 bytes three times, and 8 gradients.
    assert not fits(494_032_768, "cuda", num_gpus=1, memory_gib=40.0)
    assert fits(494_032_768, "cuda", num_gpus=1, memory_gib=80.0)


def test_a_change_that_cannot_run_or_whose_ranks_die_is_left_out_with_the_reason_and_costs_the_others_nothing(
    waiting, monkeypatch, tmp_path
):
    # 8 TB of parameters: the allocation fails, on any machine.
    large = write_device(tmp_path / "large", dataclasses.replace(DEVICE, parameters_per_layer=2 * 10**12))
    knobs = [
        _knob("one bucket", bucket_mib=75.0),
        advice.Knob(key="train.larger", change="larger", overrides={"model_dir": str(large)}),
        _knob("two", bucket_mib=50.0),
        _knob("deadly", bucket_mib=30.0),
        _knob("seven layers", layers=7.0),
    ]
    run = Bench.run

    def deadly(self, arm, steps):
        if arm.name.endswith("deadly"):
            _rank(1, tmp_path).send_signal(signal.SIGKILL)
        return run(self, arm, steps)

    monkeypatch.setattr(Bench, "run", deadly)
    monkeypatch.setattr(advice, "list_knobs", lambda *_, **__: knobs)
    bench, alone = Bench({"2dev": waiting}, seed=1), SimpleNamespace(cells=[TWO], most_share=1.0, seed=1)
    found = advice.advise(PARAMS, alone, bench, device="cpu", has_room=lambda _: True, waterfalls=[])
    assert {one.change for one in found.tried} == {"one bucket", "two"}
    memory, died, unknown = found.failed
    assert memory == "larger (out of memory)"
    assert died.startswith("deadly (")
    assert "rank 1 was ended by signal 9" in died
    assert unknown.startswith("seven layers (TypeError: ")
    # Of what is measured itself, one line ends it all.
    _rank(1, tmp_path).send_signal(signal.SIGKILL)
    with pytest.raises(DistributedError, match=r"^[^\n]*cell 2dev[^\n]*$"):
        waiting.ask("run", variant={}, block={"steps": [1] * 2000, "data": "device"})


def test_a_stop_is_heard_while_ranks_are_at_work(waiting, stop):
    waiting.ask("facts")
    threading.Timer(0.3, stop.set).start()
    asked_at = time.monotonic()
    block = {"steps": [1] * 2000, "data": "device"}
    with pytest.raises(PreemptedError):
        waiting.ask("run", variant={}, block=block)
    assert time.monotonic() - asked_at < 20


def _knob(change, **options):
    return advice.Knob(key="options.bucket_mib", change=change, overrides={"options": options})


def _rank(number, folder):
    ranks = [one for one in list_named(folder) if "--serve" in read_words(one)]
    return next(one for one in ranks if one.environ().get("RANK") == str(number))
