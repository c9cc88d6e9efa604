"""Blocks of real steps on one rank: what they run, count and leave as it was."""

import numpy as np
import pytest
import torch

from training.data.batches import open_slice
from training.data.plan import plan_segment
from training.probing import variants
from training.probing.timed_blocks import Block, BlockRunner
from training.probing.variants import Variant
from training.step.replica import Replica

STEPS = [2, 3, 3]
PLAIN = Variant()
WRAPPED, SILENT = Variant(strategy="ddp"), Variant(strategy="ddp", communicates=False)


@pytest.fixture
def runner(toy):
    """What a rank has while it is measured: one epoch of 45 ragged rows, 8 samples per step in micro-batches of 2."""
    return BlockRunner(toy.read(), toy.alone)


def _block(variant=PLAIN, *, data="device", **more):
    return Block(**{"variant": variant, "steps": STEPS, "data": data, **more})


@pytest.mark.parametrize("data", ["loader", "host", "device"])
def test_a_block_counts_its_steps_and_not_the_lead_in(runner, toy, data):
    config, found = toy.read(), runner.run(_block(data=data))
    lengths = open_slice(config.segments[0].slice_dir).lengths(config.seq_len)
    plan = plan_segment(lengths, seed=config.seed, epoch=1, rows="0-45", global_batch_size=8, micro_batch_size=2)
    assert found["num_tokens"] == sum(plan.step(step).num_tokens for step in STEPS)
    assert found["num_samples"] == 8 * len(STEPS)
    padded = [2 * -(-int(lengths[rows].max()) // 8) * 8 for step in STEPS for rows in plan.step(step).micro_batches]
    assert found["num_positions"] == sum(padded)
    assert len(found["step_seconds"]) == len(STEPS)
    assert 0 < sum(found["step_seconds"]) <= found["seconds"]
    assert (found["data_wait_seconds"] > 0) == (data == "loader")


@pytest.mark.parametrize(("model", "optimizer"), [("tiny", "sgd"), ("untied", "adamw")])
def test_variants_have_one_set_of_weights_and_moments_compute_what_each_does_alone_and_leave_the_weights(
    model, optimizer, toy
):
    config, alone = toy.read(model=model, optimizer=optimizer), toy.alone
    packed = Variant(strategy="ddp", overrides={"packing": True, "micro_batch_size": 4})
    runner = BlockRunner(config, alone)
    before = runner._get(PLAIN).strategy.digest().parameters
    places, moments = set(), set()
    for variant in (PLAIN, WRAPPED, SILENT, Variant(is_independent=True), packed):
        block = _block(variant)
        together, by_itself = runner.run(block), BlockRunner(config, alone).run(block)
        for name in ("loss_sum", "grad_norm_sum", "rows_digest"):
            assert together[name] == by_itself[name]
        strategy = runner._get(variant).strategy
        assert strategy.digest().parameters == before
        replica = strategy.replica
        places.add(tuple(part.data_ptr() for part in replica.parameters))
        state = [replica.optimizer.state[part] for part in replica.parameters]
        moments.add(tuple(one[name].data_ptr() for one in state for name in replica.moments))
    assert len(places) == len(moments) == 1
    assert len(next(iter(moments))) == len(replica.moments) * len(replica.parameters)
    runner.forget()
    runner.run(_block())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("part", ["step", "update"])
def test_a_block_tells_its_updates_by_the_optimizers_own_state(optimizer, part, toy, monkeypatch):
    runner = BlockRunner(toy.read(optimizer=optimizer), toy.alone)
    block = _block(part=part)
    strategy = runner._get(block.variant).strategy
    replica, before = strategy.replica, strategy.digest().parameters
    right = runner.run(block)
    assert strategy.digest().parameters == before
    assert right["updates"] == [len(STEPS)] * 2
    assert right["num_updated"] == sum(part.numel() for part in replica.parameters)
    assert runner.run(block)["moment_squares"] == right["moment_squares"]
    assert bool(right["moment_squares"]) == (part == "step" or optimizer == "sgd"), "SGD's has the weight decay"

    def halve(*_):
        for one in replica.parameters:
            one.grad.mul_(0.5)

    hook = replica.optimizer.register_step_pre_hook(halve)
    halved = runner.run(block)
    hook.remove()
    assert part == "update" or halved["moment_squares"] == pytest.approx(right["moment_squares"] / 4, rel=0.05)
    assert halved["updates"] == right["updates"]
    monkeypatch.setattr(replica.optimizer, "step", lambda *_, **__: None)
    assert runner.run(block)["updates"] == [0, 0]


def test_whatever_is_asked_of_a_variant_has_its_threads_and_those_that_a_step_takes_are_known(runner, monkeypatch):
    threaded, before, step = Variant(overrides={"threads_per_rank": 2}), torch.get_num_threads(), Replica.optimizer_step
    try:
        for variant, number in ((threaded, 2), (PLAIN, 1)) * 2:
            runner.facts(variant)
            assert torch.get_num_threads() == number
        monkeypatch.setattr(Replica, "optimizer_step", lambda *given: (torch.set_num_threads(2), step(*given))[1])
        runner.run(_block())
        assert runner.facts(PLAIN)["setting"]["kernels"]["threads"] == 2
    finally:
        torch.set_num_threads(before)


def test_a_block_tells_its_rows_loss_gradient_and_exchanges(runner):
    plain, wrapped, silent = (runner.run(_block(variant)) for variant in (PLAIN, WRAPPED, SILENT))
    for one in (wrapped, silent):
        assert one["rows_digest"] == plain["rows_digest"]
        assert one["num_micro_batches"] == plain["num_micro_batches"] == 12
        assert one["loss_sum"] == pytest.approx(plain["loss_sum"], rel=1e-9)
        assert one["grad_norm_sum"] == pytest.approx(plain["grad_norm_sum"], rel=1e-5)
    assert plain["loss_sum"] / plain["num_targets"] == pytest.approx(np.log(128), rel=0.1)
    buckets = runner.facts(WRAPPED)["exchange"]["bucket_bytes"]
    assert (wrapped["num_exchanges"], wrapped["exchange_bytes"]) == (3 * len(buckets), 3 * sum(buckets))
    for one in (plain, silent):
        assert (one["num_exchanges"], one["exchange_bytes"]) == (0, 0)


def test_a_block_tells_what_its_steps_learned_from_and_not_what_was_planned(runner, monkeypatch):
    block, deal = Block(variant=Variant(), steps=STEPS, data="host"), variants.make_micro_batches
    planned = runner.run(block)
    monkeypatch.setattr(variants, "make_micro_batches", lambda *given, **more: deal(*given, **more | {"world_size": 2}))
    half = runner.run(block)
    assert (planned["num_samples"], half["num_samples"]) == (24, 12)
    for name in ("num_tokens", "num_targets", "num_positions", "loss_sum"):
        assert 0 < half[name] < planned[name]
    assert half["rows_digest"] != planned["rows_digest"]


def test_other_rows_or_the_same_in_other_steps_have_another_digest(runner):
    def digest(*steps):
        return runner.run(_block(steps=steps, data="host"))["rows_digest"]

    assert digest(2, 3) == digest(2, 3)
    assert len({digest(2, 3), digest(3, 2), digest(2, 4), digest(2)}) == 4
