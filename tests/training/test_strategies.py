"""One optimizer step, by hand and by strategy."""

import dataclasses
import gc

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from tests.training.conftest import relative_l2, weights_at_end
from training.data.batches import open_slice
from training.data.plan import plan_segment
from training.process.heartbeat import StepSection
from training.step.optimizer import list_moments
from training.step.schedule import compute_learning_rate
from training.workloads.causal_lm import load_model


def test_trained_weights_equal_a_training_by_hand_row_by_row(toy, train_here):
    config = toy.tell()
    lines = [event for event in train_here(config) if event["event"] == "step"]
    assert len(lines) == 6
    model, source = load_model(toy.models("tiny")), open_slice(toy.rows("causal_lm")[0])
    order = plan_segment(
        source.lengths(32), seed=1, epoch=1, rows="0-45", global_batch_size=8, micro_batch_size=2
    ).order  # fmt: skip
    parts = {decays: [part for part in model.parameters() if (part.ndim >= 2) == decays] for decays in (True, False)}
    optimizer = torch.optim.AdamW(
        [{"params": group, "weight_decay": 0.01 * decays} for decays, group in parts.items()], foreach=False
    )
    for index, line in enumerate(lines):
        rows = [torch.tensor(source.row(row, 32).astype("int64")) for row in order[index * 8 : (index + 1) * 8]]
        num_tokens = sum(len(row) - 1 for row in rows)
        loss = torch.zeros(())
        for row in rows:
            logits = model(input_ids=row[None]).logits[0, :-1]
            loss = loss + nn.functional.cross_entropy(logits, row[1:], reduction="sum")
        (loss / num_tokens).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = compute_learning_rate(index + 1, 6, peak=2e-3, schedule="linear", warmup_steps=2, floor=0.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        assert (line["num_tokens"], line["num_samples"], line["learning_rate"]) == (num_tokens, len(rows), rate)
        assert line["loss"] == pytest.approx(float(loss.detach()) / num_tokens, rel=1e-5)
        assert line["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert relative_l2(weights_at_end(config), model.state_dict()) < 2e-6


@pytest.mark.parametrize("changes", [
    {}, {"strategy": "ddp", "options": {"bucket_view": False}}, {"strategy": "fsdp2"},
    {"strategy": "ddp", "exact": True}, {"optimizer": "sgd", "momentum": 0.0}, {"global_batch_size": 2},
], ids=str)  # fmt: skip
@pytest.mark.usefixtures("nothing_older")
def test_warming_up_has_in_memory_what_a_step_has_and_no_more(toy, changes):
    strategy, (parts, num_targets) = toy.build(**changes), toy.take(**changes)
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
    weights = sum(part.numel() * part.element_size() for part in strategy.module.parameters())
    # The moments, and where a step has several micro-batches the gradient.
    assert warm > (len(list_moments(toy.read(**changes))) + (len(parts) > 1)) * 0.99 * weights


@pytest.fixture
def nothing_older():
    """Have Python's collector know what comes from here on alone: all that other tests left is much to look through."""
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
    strategy, (parts, num_targets) = toy.build(precision="fp16"), toy.take()
    strategy.train_step(parts, num_targets=num_targets, learning_rate=1e-3)
    *_, (_, state) = strategy.snapshot()
    strategy.replica.load_state({**state, "scaler": {**state["scaler"], "scale": 2.0**60}})
    before = strategy.digest().parameters
    result = strategy.train_step(parts, num_targets=num_targets, learning_rate=1e-3)
    assert not result.grad_norm.isfinite()
    assert strategy.replica.may_overflow()
    assert strategy.digest().parameters == before
    assert strategy.replica.state_of_all()["scaler"]["scale"] == 2.0**59
