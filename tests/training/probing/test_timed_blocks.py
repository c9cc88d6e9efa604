"""Blocks of real steps on one rank: what they run, count and leave as it was."""

import dataclasses
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, write_device
from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import parsed
from training.data.batches import open_slice
from training.data.plan import plan_segment
from training.data.row_digest import digest_rows
from training.probing.timed_blocks import Block, BlockRunner
from training.probing.variants import Variant
from training.process.distributed import Ranks

STEPS = [2, 3, 3]
VARIANTS = [
    Variant(), Variant(strategy="ddp"), Variant(strategy="ddp", communicates=False), Variant(is_independent=True),
]  # fmt: skip


@pytest.fixture
def config(tiny_model: Path, slices: list[Path], tmp_path: Path) -> Any:
    """One epoch of 45 ragged rows, 8 samples per step in micro-batches of 2."""
    return parsed(make_config(tmp_path, tiny_model, slices[:1]), tmp_path)


@pytest.fixture
def runner(config: Any, alone: Ranks) -> BlockRunner:
    """What a rank has while it is measured."""
    return BlockRunner(config, alone)


@pytest.mark.parametrize("data", ["loader", "host", "device"])
def test_a_block_counts_its_steps_and_not_the_lead_in(runner: BlockRunner, config: Any, data: str) -> None:
    found = runner.run(Block(variant=Variant(), steps=STEPS, data=data))
    lengths = open_slice(config.segments[0].slice_dir).lengths(config.seq_len)
    plan = plan_segment(lengths, seed=config.seed, epoch=1, rows="0-45", global_batch_size=8, micro_batch_size=2)
    assert found["num_tokens"] == sum(plan.step(step).num_tokens for step in STEPS)
    assert found["num_samples"] == 8 * len(STEPS)
    padded = [2 * -(-int(lengths[rows].max()) // 8) * 8 for step in STEPS for rows in plan.step(step).micro_batches]
    assert found["num_positions"] == sum(padded)
    assert len(found["step_seconds"]) == len(STEPS)
    assert 0 < sum(found["step_seconds"]) <= found["seconds"]
    assert (found["data_wait_seconds"] > 0) == (data == "loader")


@pytest.mark.parametrize(
    "variant",
    VARIANTS,
)
@pytest.mark.parametrize("part", ["step", "update"])
def test_measuring_leaves_the_weights_of_the_base_model(
    runner: BlockRunner, tiny_model: Path, variant: Variant, part: str
) -> None:
    from training.model.weights import compute_parameter_checksum
    from training.workloads.causal_lm import load_model

    runner.run(Block(variant=variant, steps=STEPS, data="device", part=part))
    assert runner._get(variant).strategy.replica.parameter_checksum() == compute_parameter_checksum(
        load_model(tiny_model)
    )


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("tied", [True, False])
def test_variants_have_one_set_of_weights_and_moments_and_compute_what_each_does_alone(
    optimizer: str, tied: bool, tmp_path: Path, slices: list[Path], alone: Ranks
) -> None:
    model = make_tiny_model(tmp_path / "model", tied=tied)
    config = parsed(make_config(tmp_path, model, slices[:1], optimizer=optimizer), tmp_path)
    variants = [*VARIANTS, Variant(strategy="ddp", overrides={"packing": True, "micro_batch_size": 4})]
    runner = BlockRunner(config, alone)
    places, moments = set(), set()
    for variant in variants:
        block = Block(variant=variant, steps=STEPS, data="device")
        together, by_itself = runner.run(block), BlockRunner(config, alone).run(block)
        for name in ("loss_sum", "grad_norm_sum", "rows_digest"):
            assert together[name] == by_itself[name]
        replica = runner._get(variant).strategy.replica
        places.add(tuple(part.data_ptr() for part in replica.parameters))
        state = [replica.optimizer.state[part] for part in replica.parameters]
        moments.add(tuple(one[name].data_ptr() for one in state for name in replica._moments))
    assert len(places) == len(moments) == 1
    assert len(next(iter(moments))) == len(replica._moments) * len(replica.parameters)
    runner.forget()
    runner.run(Block(variant=VARIANTS[0], steps=STEPS, data="device"))


@pytest.mark.alone
def test_a_loader_that_is_faster_than_a_step_keeps_no_block_waiting(
    tmp_path: Path, slices: list[Path], alone: Ranks
) -> None:
    # Four micro-batches of 10 ms; loading them takes 36 ms.
    device = EmulatedDevice(num_layers=2, forward_ms=2.0, backward_ms=3.0, data_ms=9.0)
    told = make_config(tmp_path, write_device(tmp_path / "device", device), slices[:1], workload=WORKLOAD)
    runner = BlockRunner(parsed(told, tmp_path), alone)
    block = Block(variant=Variant(), steps=[2], data="loader")
    runner.run(block)
    waited = min(runner.run(block)["data_wait_seconds"] for _ in range(5))
    assert waited < 0.01
    slow = write_device(tmp_path / "slow", dataclasses.replace(device, data_ms=20.0))
    block = Block(variant=Variant(overrides={"model_dir": str(slow)}), steps=[2], data="loader")
    runner.run(block)
    # Of 80 ms, 40 are waited for; fewer where other load makes a step longer than its 40.
    assert max(runner.run(block)["data_wait_seconds"] for _ in range(5)) > 0.02


def test_an_update_alone_runs_no_micro_batch(runner: BlockRunner) -> None:
    found = runner.run(Block(variant=Variant(), steps=STEPS, data="device", part="update"))
    assert (found["num_tokens"], found["num_positions"], found["num_samples"]) == (0, 0, 0)
    assert len(found["step_seconds"]) == len(STEPS)


def test_a_variant_changes_the_config_of_its_own_steps_alone(runner: BlockRunner) -> None:
    larger = Variant(overrides={"micro_batch_size": 4})
    assert len(runner._get(larger).plan.step(1).micro_batches) == 2
    assert len(runner._get(Variant()).plan.step(1).micro_batches) == 4


def test_what_is_built_is_kept_until_it_is_forgotten(runner: BlockRunner) -> None:
    first = runner._get(Variant())
    assert runner._get(Variant()) is first
    runner.forget()
    assert runner._get(Variant()) is not first


def test_nothing_of_what_is_forgotten_stays_in_memory(runner: BlockRunner) -> None:
    gc.collect()
    gc.disable()
    try:
        runner.run(Block(variant=Variant(strategy="ddp"), steps=[1], data="device"))
        left = [weakref.ref(made.model) for made in runner._made.values()]
        runner.forget()
        assert [ref() for ref in left] == [None]
    finally:
        gc.enable()


def test_facts_tell_full_steps_and_buckets(runner: BlockRunner) -> None:
    facts = runner.facts(Variant(strategy="ddp"))
    assert facts["num_steps"] == 5
    assert sum(facts["exchange"]["bucket_bytes"]) > 0
    assert runner.facts(Variant())["exchange"] == {}


def test_ddp_says_what_it_timed_and_a_plain_module_says_nothing(runner: BlockRunner) -> None:
    timers = runner.collect_timers(Variant(strategy="ddp"))
    assert set(timers) == {"forward_compute", "backward_compute", "backward_comm", "backward_compute_comm_overlap"}
    assert timers["backward_comm"] > 0
    assert runner.collect_timers(Variant()) == {}


def test_a_block_tells_its_rows_loss_gradient_and_exchanges(runner: BlockRunner) -> None:
    plain, wrapped, silent = (
        runner.run(Block(variant=variant, steps=STEPS, data="device"))
        for variant in (Variant(), Variant(strategy="ddp"), Variant(strategy="ddp", communicates=False))
    )
    for one in (wrapped, silent):
        assert one["rows_digest"] == plain["rows_digest"]
        assert one["num_micro_batches"] == plain["num_micro_batches"] == 12
        assert one["loss_sum"] == pytest.approx(plain["loss_sum"], rel=1e-9)
        assert one["grad_norm_sum"] == pytest.approx(plain["grad_norm_sum"], rel=1e-5)
    assert plain["loss_sum"] / plain["num_targets"] == pytest.approx(np.log(128), rel=0.1)
    gradient_bytes = sum(runner.facts(Variant(strategy="ddp"))["exchange"]["bucket_bytes"])
    num_buckets = len(runner.facts(Variant(strategy="ddp"))["exchange"]["bucket_bytes"])
    assert (wrapped["num_exchanges"], wrapped["exchange_bytes"]) == (3 * num_buckets, 3 * gradient_bytes)
    for one in (plain, silent):
        assert (one["num_exchanges"], one["exchange_bytes"]) == (0, 0)


def test_other_rows_or_the_same_in_other_steps_have_another_digest(runner: BlockRunner) -> None:
    def digest(*steps: int) -> int:
        found: int = runner.run(Block(variant=Variant(), steps=steps, data="host"))["rows_digest"]
        return found

    assert digest(2, 3) == digest(2, 3)
    assert len({digest(2, 3), digest(3, 2), digest(2, 4), digest(2)}) == 4
    rows = [np.arange(8), np.arange(8, 16)]
    shares = [digest_rows([[part[::2]] for part in rows]), digest_rows([[part[1::2]] for part in rows])]
    assert sum(shares) % 2**64 == digest_rows([[part[::-1]] for part in rows])


def test_a_block_has_the_rows_of_the_segment_that_is_asked_for(
    tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    runner = BlockRunner(parsed(make_config(tmp_path, tiny_model, slices), tmp_path), alone)
    assert len(runner.facts(Variant())["num_steps_of_segments"]) == len(slices) > 1
    first, second = (
        runner.run(Block(variant=Variant(), steps=[1, 2], data="loader", segment=index)) for index in range(2)
    )
    assert first["num_samples"] == second["num_samples"] == 16
    assert first["rows_digest"] != second["rows_digest"]
    assert runner._get(Variant(), 1).strategy is runner._get(Variant()).strategy


def test_a_recorded_step_shows_forward_backward_and_update_in_this_order_and_leaves_the_weights(
    runner: BlockRunner, tiny_model: Path
) -> None:
    found = runner.record_timeline(Variant())
    assert found["started_at_ns"] > 1e18
    starts = [event[2] for event in found["events"]]
    assert starts == sorted(starts)
    names = [event[0] for event in found["events"]]
    first = [next(n for n, name in enumerate(names) if name.startswith(kind)) for kind in _IN_ORDER]
    assert first == sorted(first)
    assert all(event[1].startswith("host") and event[3] >= 0 for event in found["events"])


_IN_ORDER = ("aten::embedding", "autograd::engine::evaluate_function", "Optimizer.step")
