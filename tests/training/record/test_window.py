"""What is checked when the clock stands still."""

import math
import time

import pytest
import torch

from tests.tiny import batches_in_order
from training.data.batches import open_slice
from training.data.plan import StepPlan
from training.process.distributed import Ranks
from training.process.failure import DivergedError, RanksDisagreeError
from training.record.window import Window
from training.step.strategy import StepResult


@pytest.fixture
def batch(slices):
    """Four rows."""
    return next(batches_in_order(open_slice(slices[0]), batch_size=4, seq_len=32))


def _add(window, batch, *, step=7, loss=1.0, grad_norm=1.0, data_wait=0.0, **planned):
    """Enter a step whose plan has the tokens and labels of the batch, or as many as are given."""
    plan = StepPlan((), **{"num_tokens": batch.num_tokens, "num_targets": batch.num_tokens, **planned})
    window.add(
        step, StepResult(torch.tensor(loss, dtype=torch.float64), torch.tensor(grad_norm)), [batch], planned=plan,
        learning_rate=1e-3, data_wait_seconds=data_wait,
    )  # fmt: skip
    return window


@pytest.mark.parametrize(
    ("planned", "says"),
    [({"num_tokens": 4}, r"\[\d+\] tokens, the plan has 4"), ({"num_targets": 4}, r"\[\d+\] labels, the plan has 4")],
)
def test_other_tokens_or_labels_than_planned_are_refused_with_both_numbers(planned, says, alone, batch):
    with pytest.raises(RanksDisagreeError, match=f"step 7: the ranks learned from {says}"):
        _add(Window(alone), batch, **planned).close(forgives_overflow=lambda: False)


def test_a_gradient_norm_that_is_not_finite_is_divergence_unless_fp16_skips_it(alone, batch):
    with pytest.raises(DivergedError, match="step 7: gradient norm is inf"):
        _add(Window(alone), batch, grad_norm=math.inf).close(forgives_overflow=lambda: False)
    (fact,) = _add(Window(alone), batch, grad_norm=math.inf).close(forgives_overflow=lambda: True)
    assert fact.grad_norm is None
    with pytest.raises(DivergedError, match="step 7: loss is nan"):
        _add(Window(alone), batch, loss=math.nan).close(forgives_overflow=lambda: True)


def test_seconds_in_which_no_step_ran_are_told_from_those_of_the_step(alone, batch):
    window = Window(alone)
    for step, (seconds_inside, seconds_before) in enumerate([(0.2, 0.0), (0.0, 0.1)], start=1):
        time.sleep(seconds_before)
        with window.time_computation():
            time.sleep(seconds_inside)
        _add(window, batch, step=step, data_wait=0.03 * (step == 2))
    time.sleep(0.3)  # such as an upload, before the clock stops
    first, second = window.close(forgives_overflow=lambda: False)
    # With what was computed among them it would be 0.2 s and more.
    assert 0 <= first.other_seconds < 0.2
    assert second.other_seconds >= 0.37  # 0.1 s before it and 0.3 s after it, 0.03 s of them without data
    computed = first.seconds + second.seconds - first.other_seconds - second.other_seconds - 0.03
    assert computed >= 0.2


def test_ranks_that_end_with_different_parameters_save_nothing(toy, train_here, monkeypatch):
    gather = Ranks.gather_values
    # One real rank, and the word of a second whose parameters are others.
    monkeypatch.setattr(
        Ranks, "gather_values",
        lambda ranks, value: [value, "0" * len(value)] if isinstance(value, str) else gather(ranks, value),
    )  # fmt: skip
    with pytest.raises(RanksDisagreeError, match="different parameters"):
        train_here(toy.tell())
    assert not list((toy.folder / "work").rglob("*.pt"))
