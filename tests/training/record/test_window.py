"""What is checked when the clock stands still."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import batches_in_order, make_config
from tests.training.conftest import parsed
from training.data.batches import open_slice
from training.data.plan import StepPlan
from training.loop import train
from training.process.distributed import Ranks
from training.process.events import EventStream
from training.process.failure import DivergedError, RanksDisagreeError
from training.process.stop_request import StopRequest
from training.record.window import Window
from training.step.strategy import StepResult


def _planned(num_tokens: int, num_targets: int | None = None) -> StepPlan:
    """Return the plan of a step with so many tokens, and as many labels unless told otherwise."""
    return StepPlan(
        micro_batches=(), num_tokens=num_tokens, num_targets=num_tokens if num_targets is None else num_targets
    )


def _window(ranks: Ranks, slice_dir: Path, *, loss: float, grad_norm: float, missing_tokens: int = 0) -> Window:
    """Return a window with one step whose plan says `missing_tokens` more than the step had."""
    batch = next(batches_in_order(open_slice(slice_dir), batch_size=4, seq_len=32))
    result = StepResult(
        loss_sum=torch.tensor(loss, dtype=torch.float64),
        grad_norm=torch.tensor(grad_norm),
    )
    window = Window(ranks)
    num_tokens = batch.num_tokens + missing_tokens
    window.add(7, result, [batch], planned=_planned(num_tokens), learning_rate=1e-3, data_wait_seconds=0.0)
    return window


def test_fewer_tokens_than_planned_are_refused_with_both_numbers(alone: Ranks, slices: list[Path]) -> None:
    window = _window(alone, slices[0], loss=1.0, grad_norm=1.0, missing_tokens=1)
    with pytest.raises(RanksDisagreeError, match=r"step 7: the ranks learned from \[\d+\] tokens, the plan has \d+"):
        window.close(forgives_overflow=lambda: False)


def test_labels_that_the_plan_does_not_have_are_refused_though_the_tokens_are_right(
    alone: Ranks, slices: list[Path]
) -> None:
    batch = next(batches_in_order(open_slice(slices[0]), batch_size=4, seq_len=32))
    result = StepResult(torch.ones(()).double(), torch.ones(()))
    window = Window(alone)
    planned = _planned(batch.num_tokens, num_targets=4)
    window.add(7, result, [batch], planned=planned, learning_rate=1e-3, data_wait_seconds=0.0)
    with pytest.raises(RanksDisagreeError, match=r"step 7: the ranks learned from \[\d+\] labels, the plan has 4"):
        window.close(forgives_overflow=lambda: False)


def test_a_gradient_norm_that_is_not_finite_is_divergence_unless_fp16_skips_it(
    alone: Ranks, slices: list[Path]
) -> None:
    with pytest.raises(DivergedError, match="step 7: gradient norm is inf"):
        _window(alone, slices[0], loss=1.0, grad_norm=float("inf")).close(forgives_overflow=lambda: False)
    (fact,) = _window(alone, slices[0], loss=1.0, grad_norm=float("inf")).close(forgives_overflow=lambda: True)
    assert fact.grad_norm is None
    with pytest.raises(DivergedError, match="step 7: loss is nan"):
        _window(alone, slices[0], loss=float("nan"), grad_norm=1.0).close(forgives_overflow=lambda: True)


def test_whether_an_overflow_is_forgiven_is_asked_when_the_clock_stands(alone: Ranks, slices: list[Path]) -> None:
    asked_at = []

    def forgives() -> bool:
        asked_at.append(time.perf_counter())
        return True

    window = _window(alone, slices[0], loss=1.0, grad_norm=float("inf"))
    window.close(forgives_overflow=forgives)
    assert len(asked_at) == 1
    assert asked_at[0] >= window.closed_at


def test_seconds_in_which_no_step_ran_are_told_from_those_of_the_step(alone: Ranks, slices: list[Path]) -> None:
    batch = next(batches_in_order(open_slice(slices[0]), batch_size=4, seq_len=32))
    window = Window(alone)
    for step, (seconds_inside, seconds_before) in enumerate([(0.2, 0.0), (0.0, 0.1)], start=1):
        time.sleep(seconds_before)
        with window.time_computation():
            time.sleep(seconds_inside)
        result = StepResult(torch.zeros(()).double(), torch.ones(()))
        window.add(
            step, result, [batch],
            planned=_planned(batch.num_tokens), learning_rate=1e-3, data_wait_seconds=0.03 * (step == 2),
        )  # fmt: skip
    time.sleep(0.3)  # such as an upload, before the clock stops
    first, second = window.close(forgives_overflow=lambda: False)
    # With what was computed among them it would be 0.2 s and more.
    assert 0 <= first.other_seconds < 0.2
    assert second.other_seconds >= 0.37  # 0.1 s before it and 0.3 s after it, 0.03 s of them without data
    computed = first.seconds + second.seconds - first.other_seconds - second.other_seconds - 0.03
    assert computed >= 0.2


def test_a_clock_that_was_started_too_late_leaves_less_than_no_seconds(alone: Ranks, slices: list[Path]) -> None:
    batch = next(batches_in_order(open_slice(slices[0]), batch_size=4, seq_len=32))
    window = Window(alone)
    entered = time.perf_counter()
    with window.time_computation():
        time.sleep(0.2)
    left = window._started = time.perf_counter()
    result = StepResult(torch.zeros(()).double(), torch.ones(()))
    window.add(1, result, [batch], planned=_planned(batch.num_tokens), learning_rate=1e-3, data_wait_seconds=0.0)
    (fact,) = window.close(forgives_overflow=lambda: False)
    assert fact.other_seconds == pytest.approx(window.closed_at - left - (left - entered), abs=0.02)
    assert fact.other_seconds < 0, "the clock stood for 0.2 s"


class RanksWithAStranger(Ranks):
    """One real rank, and the word of a second whose parameters are others."""

    def gather_text(self, text: str) -> list[str]:
        """Return our text and a made-up one."""
        return [text, "0" * len(text)]


def test_ranks_that_end_with_different_parameters_save_nothing(
    alone: Ranks, tiny_model: Path, slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices[:1])
    fields = {field.name: getattr(alone, field.name) for field in dataclasses.fields(alone)}
    events = EventStream(tmp_path / "steps.jsonl", rank=0)
    with pytest.raises(RanksDisagreeError, match="different parameters"):
        train(parsed(config, tmp_path), RanksWithAStranger(**fields), stop=StopRequest(), events=events)
    assert not list((tmp_path / "work").rglob("*.pt"))
