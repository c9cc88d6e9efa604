"""A whole measurement of emulated devices: real ranks under torchrun, real DDP over gloo, layers that sleep."""

import dataclasses
import signal
import sys
import threading
import time
from functools import partial

import pytest

from tasks.measuring import advice
from tasks.measuring.arms import WRAPPED, Cell, make_spreading_arms, make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.session import count_all_trained, has_room
from tasks.measuring.timed_comparison import TimedComparison
from tasks.measuring.turns import TimedTurns, generate_turns
from tasks.process.failure import DistributedError, PreemptedError, ResourceError
from tests.emulator.device import EmulatedDevice, write_device
from tests.emulator.measuring import emulated_params, emulated_ranks, measure_device
from tests.machines import make_machine
from tests.processes import list_named, read_words

pytestmark = pytest.mark.slow

_alone = pytest.mark.alone
"""What it holds is told by seconds; the others hold whoever runs beside them."""

DEVICE = EmulatedDevice(
    num_layers=3, forward_ms=1.0, backward_ms=2.0, gradient_mib_per_layer=25.0, link_latency_ms=15.0
)
"""9 ms per micro-batch and 3 buckets of 15 ms: what two of them lose is communication, however busy the machine is."""
MEASURE = {
    "max_seconds": 2, "burn_in_seconds": 0, "block_seconds": 0.04, "advice_seconds": 10, "others_share": 1,
    "waterfall_seconds": 2,
}  # fmt: skip
PARAMS = emulated_params([1, 2], num_micro_batches=4, measure=MEASURE)
COMPARISON = TimedComparison(
    cells=[Cell(name="2dev", strategy="ddp", world_size=2, global_batch_size=4)],
    has_copy=True, is_weak=False, is_exact=False, half_width=0.03, max_seconds=1.0, waterfall_seconds=1.0,
    most_share=1.0, block_seconds=0.04, seed=1,
)  # fmt: skip
"""Of the two devices alone."""


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
        return measure_device(DEVICE, PARAMS, folder=folder, stop=threading.Event(), num_devices=4)


@_alone
def test_every_cell_is_timed_in_the_same_turns_over_several_starts(measured):
    assert list(measured.speeds) == ["1dev", "2dev"]
    assert {one.num_blocks for one in measured.speeds.values()} == {measured.num_turns}
    assert measured.num_launches == 3, "as many as an interval needs, since the time is short"
    launches = [[block.launch for block in arm.blocks] for arm in measured.blocks if arm.phase == "speedup"]
    assert launches[0] == launches[1] == sorted(launches[0])
    assert set(launches[0]) == {1, 2, 3}
    assert {block.launch for arm in measured.blocks if arm.phase == "waterfall" for block in arm.blocks} == {3}
    assert {len(block.steps) for arm in measured.blocks for block in arm.blocks} >= {4}
    assert [len(one.step_p50_seconds) for one in measured.speeds.values()] == [1, 2]
    assert all(one.mfu is None and one.gpu_watts is None for one in measured.speeds.values())
    assert list(measured.speedups) == ["2dev"]
    assert f"1dev{WRAPPED}" in measured.beside


@_alone
def test_memory_of_each_cell_is_measured_rank_by_rank_beside_what_is_foretold(measured):
    assert [(one.cell, one.device, len(one.ranks)) for one in measured.memory] == [
        ("1dev", "cpu", 1),
        ("2dev", "cpu", 2),
    ]
    for one in measured.memory:
        assert all(rank.parts is not None and rank.allocated_gib == rank.parts.total > 0 for rank in one.ranks)
        assert one.predicted is None, "of a GPU alone"


@_alone
def test_rates_are_counted_work_over_time(measured):
    for arm in measured.speeds.values():
        # Rows of 8 tokens without padding: 7 are learned from.
        assert arm.tokens_per_second == pytest.approx(7 * arm.samples_per_second)
        assert arm.padded_tokens_per_second == pytest.approx(8 * arm.samples_per_second)
        assert arm.samples_per_second * arm.step_seconds.value == pytest.approx(4, rel=0.5)


@_alone
def test_what_two_devices_lose_is_named_and_adds_up(measured):
    (fall,) = measured.waterfalls
    assert fall.cell == "2dev"
    assert max(fall.parts, key=lambda part: part.seconds.value).name == "exposed communication"
    assert not fall.is_data_bound
    parts = sum(part.seconds.value for part in fall.parts)
    assert fall.ideal_seconds + parts + fall.unexplained_seconds == pytest.approx(fall.measured_seconds)
    assert fall.lost_efficiency == pytest.approx(1 - fall.ideal_seconds / fall.measured_seconds)


@_alone
def test_advice_says_what_to_write_and_puts_the_best_first(measured):
    patches = {one.change: one.patch for one in measured.advice.tried}
    assert patches[MICRO_BATCHES] == "train:\n  micro_batch_size: 2"
    assert patches[ONE_BUCKET] == "cells:\n  2dev:\n    options: {bucket_mib: 75.0}"
    assert measured.advice.tried[0].change == ONE_BUCKET
    gains = [one.gain.value for one in measured.advice.tried]
    assert gains == sorted(gains, reverse=True)
    for one in measured.advice.tried:
        assert (one.verdict == "recommended", one.verdict == "slower") == (one.gain.low > 1, one.gain.high < 1), one


@_alone
def test_the_link_of_the_most_ranks_is_a_line(measured):
    (link,) = measured.links
    assert (link.world_size, link.kind, link.is_slept_for) == (2, "all_reduce", True)
    # An emulated link sleeps for its latency, and for the bytes.
    assert link.latency_seconds == pytest.approx(15e-3, rel=0.3)
    assert link.seconds_per_byte is not None


@pytest.fixture
def stop():
    """What a signal to the stage sets."""
    return threading.Event()


@pytest.fixture
def waiting(tmp_path, stop, starts_warm):
    """Two ranks that wait for blocks."""
    params = emulated_params([2], num_micro_batches=4)
    with emulated_ranks(params, folder=tmp_path, device=DEVICE, stop=stop) as workers:
        yield workers["2dev"]


def test_ranks_that_wait_use_no_processor_and_where_memory_holds_one_variant_each_is_built_at_its_turn(
    waiting, tmp_path
):
    waiting.ask("facts")
    ranks = [_rank(0, tmp_path), _rank(1, tmp_path)]
    before = [sum(one.cpu_times()[:2]) for one in ranks]
    time.sleep(1.0)
    # Whoever waits in circles uses nearly the whole second.
    assert [sum(one.cpu_times()[:2]) for one in ranks] == pytest.approx(before, abs=0.3)
    bench = Bench({"2dev": waiting}, seed=1, holds_all=False)
    cell = Cell(name="2dev", strategy="ddp", world_size=2, global_batch_size=4)
    arms = [make_trained_arm(cell), *make_spreading_arms(cell)]
    bench.build(arms)
    assert all(bench.facts(arm)[0]["num_steps"] == 16 for arm in arms)
    timed_turns, order = TimedTurns(), generate_turns([arm.name for arm in arms], seed=1)
    bench.run_turn(arms, order, timed_turns)
    bench.run_turn(arms, order, timed_turns)
    assert {name: len(blocks) for name, blocks in timed_turns.blocks.items()} == {arm.name: 2 for arm in arms}
    # Four rows of 7 learned tokens in a step, two where one rank runs alone, none in an update.
    assert [timed_turns.blocks[arm.name][0].num_tokens for arm in arms] == [28, 28, 28, 14, 0]


@pytest.mark.parametrize(("num_parameters", "expected"), [(10**6, True), (10**12, False)])
def test_room_is_counted_with_every_copy_and_its_optimizer(num_parameters, expected, caplog):
    cells = [
        Cell(name="1gpu", strategy="single", world_size=1, global_batch_size=4),
        Cell(name="2gpu", strategy="ddp", world_size=2, global_batch_size=4),
    ]
    comparison = dataclasses.replace(COMPARISON, cells=cells)
    machine = make_machine(num_gpus=2, memory_gib=15.0)
    fits = partial(has_room, [*comparison.arms, *comparison.counterfactuals], cells)
    assert fits(machine, device="cpu", held=count_all_trained(num_parameters)) == expected
    # The plain process, the wrapped one; the two, without communication, and as copies of their own. Weights and
    # moments are there twice, 12 bytes of each parameter, and 5 gradients.
    caplog.clear()
    held = count_all_trained(494_032_768)
    assert not fits(machine, device="cuda", held=held)
    assert "20.2 GiB, 15.0" in caplog.text
    assert fits(make_machine(num_gpus=2, memory_gib=40.0), device="cuda", held=held)
    # On one GPU both ranks of the larger cell are there: 12 bytes three times, and 8 gradients.
    assert not fits(make_machine(num_gpus=1, memory_gib=40.0), device="cuda", held=held)
    assert fits(make_machine(num_gpus=1, memory_gib=80.0), device="cuda", held=held)


@_alone
def test_a_change_that_cannot_run_is_left_out_with_the_reason_and_the_others_are_tried(waiting, monkeypatch, tmp_path):
    # 8 TB of parameters: the allocation fails, on any machine.
    device = dataclasses.replace(DEVICE, parameters_per_layer=2 * 10**12)
    too_large = {"model_dir": str(write_device(tmp_path / "large", device))}
    found = _advise(
        monkeypatch, Bench({"2dev": waiting}, seed=1),
        _knob("one bucket", bucket_mib=75.0),
        advice.Knob(key="train.larger", change="a larger model", overrides=too_large),
        _knob("seven layers", layers=7.0),
        _knob("two", bucket_mib=50.0),
    )  # fmt: skip
    assert {one.change for one in found.tried} == {"one bucket", "two"}
    memory, why = found.failed
    assert memory == "a larger model (out of memory)"
    assert why.startswith("seven layers (TypeError: ")
    # Fewer all-reduces of 15 ms each: what works is still told apart.
    assert found.tried[0].change == "one bucket"
    with pytest.raises(ResourceError, match=r"out of memory while .*; use a smaller micro_batch_size"):
        waiting.ask("facts", variant={"overrides": too_large}, doing="building 2dev")


@_alone
def test_changes_that_help_are_tried_together_too(waiting, monkeypatch, tmp_path):
    # Three exchanges of 15 ms in a step beside two micro-batches of 9 ms: one exchange, and layers that take no time.
    fast = write_device(tmp_path / "fast", dataclasses.replace(DEVICE, forward_ms=0.01, backward_ms=0.01))
    faster = advice.Knob(key="train.faster", change="a faster device", overrides={"model_dir": str(fast)})
    found = _advise(monkeypatch, Bench({"2dev": waiting}, seed=1), _knob("one bucket", bucket_mib=75.0), faster)
    assert {one.verdict for one in found.tried} == {"recommended"}
    assert found.combined.gain.value > max(one.gain.value for one in found.tried)


@_alone
def test_a_change_whose_ranks_die_while_it_is_timed_costs_the_others_nothing(waiting, monkeypatch, tmp_path):
    knobs = [_knob("one bucket", bucket_mib=75.0), _knob("deadly", bucket_mib=30.0), _knob("two", bucket_mib=50.0)]
    bench, run, killed = Bench({"2dev": waiting}, seed=1), Bench.run, []

    def deadly(self, arm, steps):
        if arm.name.endswith("deadly"):
            _rank(1, tmp_path).send_signal(signal.SIGKILL)
            killed.append(arm.name)
        return run(self, arm, steps)

    monkeypatch.setattr(Bench, "run", deadly)
    found = _advise(monkeypatch, bench, *knobs)
    assert killed == ["2dev, deadly"]
    assert [one.change for one in found.tried] == ["one bucket", "two"]
    (why,) = found.failed
    assert why.startswith("deadly (")
    assert "rank 1 was ended by signal 9" in why
    # Of what is measured itself, one line ends it all.
    _rank(1, tmp_path).send_signal(signal.SIGKILL)
    with pytest.raises(DistributedError, match=r"^[^\n]*cell 2dev[^\n]*$"):
        waiting.ask("facts", doing="building 2dev")


def test_a_stop_is_heard_while_ranks_are_at_work(waiting, stop):
    waiting.ask("facts")
    threading.Timer(0.3, stop.set).start()
    asked_at = time.monotonic()
    block = {"steps": [1] * 2000, "data": "device"}
    with pytest.raises(PreemptedError):
        waiting.ask("run", variant={}, block=block)
    assert time.monotonic() - asked_at < 20


def _advise(monkeypatch, bench, *knobs, has_room=True):
    monkeypatch.setattr(advice, "list_knobs", lambda *_, **__: knobs)
    return advice.advise(PARAMS, COMPARISON, bench, device="cpu", has_room=lambda _: has_room, waterfalls=[])


def _knob(change, **options):
    return advice.Knob(key="options.bucket_mib", change=change, overrides={"options": options})


def _rank(number, folder):
    ranks = [one for one in list_named(folder) if "--serve" in read_words(one)]
    return next(one for one in ranks if one.environ().get("RANK") == str(number))
