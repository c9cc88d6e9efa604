"""One optimizer step, by hand and by strategy."""

import dataclasses
import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from tests.gpu.steps import open_steps
from training.process.heartbeat import StepSection


@pytest.mark.parametrize("changes", [
    {"strategy": "ddp", "options": {"bucket_view": False}}, {"strategy": "fsdp2"}, {"strategy": "ddp", "exact": True},
    {"optimizer": "sgd", "momentum": 0.0}, {"global_batch_size": 2},
], ids=str)  # fmt: skip
@pytest.mark.usefixtures("nothing_older")
def test_warming_up_has_in_memory_what_a_step_has_and_no_more(toy, changes):
    strategy, plan, make = open_steps(toy.read(**changes), toy.alone)
    parts, num_targets = make(1), plan.step(1).num_targets
    held = []
    # When a backward begins there is most in memory: all of the forward's, and whatever else a step needs.
    strategy.replica.on_section = lambda section: (
        held.append(_count_bytes()) if section is StepSection.BACKWARD else None
    )
    before = _count_bytes()
    strategy.warm_up(parts[0])
    warm = max(held) - before
    held.clear()
    alike = [dataclasses.replace(parts[0], place=part.place) for part in parts]
    for _ in range(2):
        strategy.train_step(alike, num_targets=num_targets, learning_rate=1e-3)
    assert warm == pytest.approx(max(held) - before, rel=0.02)
    # At least the gradient of an earlier micro-batch, or moments.
    assert warm > 0.99 * sum(part.numel() * part.element_size() for part in strategy.module.parameters())


@pytest.fixture(scope="module")
def nothing_older():
    """Have Python's collector know what this file's tests make alone: all that others left is much to look through."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _count_bytes():
    """Return the bytes of all tensors that Python knows: gradients too, but no bucket that no gradient lies in."""
    gc.collect()
    known = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    every = [*known, *(one.grad for one in known if one.is_leaf and one.grad is not None)]
    # What is sharded stands there by its parts, too, and what a compiler left behind has no memory.
    memory = [one.untyped_storage() for one in every if not isinstance(one, DTensor | FakeTensor)]
    return sum({one.data_ptr(): one.nbytes() for one in memory}.values())


def test_an_fp16_step_that_overflows_is_skipped_and_the_scale_halved(toy):
    strategy, plan, make = open_steps(toy.read(precision="fp16"), toy.alone)
    parts, told = make(1), {"num_targets": plan.step(1).num_targets, "learning_rate": 1e-3}
    strategy.train_step(parts, **told)
    *_, (_, state) = strategy.snapshot()
    strategy.replica.load_state({**state, "scaler": {**state["scaler"], "scale": 2.0**60}})
    before = strategy.digest().parameters
    result = strategy.train_step(parts, **told)
    assert not result.grad_norm.isfinite()
    assert strategy.replica.may_overflow()
    assert strategy.digest().parameters == before
    assert strategy.replica.state_of_all()["scaler"]["scale"] == 2.0**59
