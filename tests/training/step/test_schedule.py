"""The learning rate of every step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import make_config
from training.step.schedule import compute_learning_rate


def _rates(schedule: str, num_steps: int, warmup_steps: int, *, floor: float = 0.0) -> list[float]:
    return [
        compute_learning_rate(step, num_steps, peak=2.0, schedule=schedule, warmup_steps=warmup_steps, floor=floor)
        for step in range(1, num_steps + 1)
    ]


def test_linear_rises_to_the_peak_and_falls_evenly_without_a_step_of_zero() -> None:
    assert _rates("linear", 6, 2) == pytest.approx([1.0, 2.0, 2.0, 1.5, 1.0, 0.5])


def test_cosine_passes_half_the_peak_in_the_middle_of_the_decay() -> None:
    assert _rates("cosine", 4, 0) == pytest.approx([2.0, 1 + 2**0.5 / 2, 1.0, 1 - 2**0.5 / 2])


def test_a_decay_ends_at_its_floor_and_the_warm_up_begins_at_nothing_all_the_same() -> None:
    assert _rates("linear", 6, 2, floor=0.5) == pytest.approx([1.0, 2.0, 2.0, 1.75, 1.5, 1.25])
    assert _rates("cosine", 4, 0, floor=0.1) == pytest.approx([2.0, 1.1 + 0.9 * 2**-0.5, 1.1, 1.1 - 0.9 * 2**-0.5])
    assert _rates("cosine", 1_000, 0, floor=0.1)[-1] == pytest.approx(0.2, rel=1e-4)


def test_wsd_stays_at_the_peak_until_its_last_steps() -> None:
    def rates(num_steps: int, decay_steps: int) -> list[float]:
        return [
            compute_learning_rate(
                step, num_steps, peak=2.0, schedule="wsd", warmup_steps=1, floor=0.0, decay_steps=decay_steps
            )
            for step in range(1, num_steps + 1)
        ]

    assert rates(7, 4) == pytest.approx([2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5])
    assert rates(4, 9) == pytest.approx([2.0, 2.0, 2 * 2 / 3, 2 / 3])
    assert rates(3, 0) == [2.0, 2.0, 2.0]


def test_a_schedule_over_the_run_goes_on_from_segment_to_segment(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Callable[..., Any]
) -> None:
    config = make_config(tmp_path, tiny_model, slices[:1], epochs=2, schedule="cosine", warmup_steps=8)
    for index, segment in enumerate(config["segments"]):
        segment |= {"schedule_begin": 6 * index, "schedule_total": 12}
    events = train_here(config)
    rates = [event["learning_rate"] for event in events if event["event"] == "step"]
    whole = [
        compute_learning_rate(step, 12, peak=2e-3, schedule="cosine", warmup_steps=8, floor=0.0)
        for step in range(1, 13)
    ]
    assert rates == whole
    assert rates[7] == max(rates)


def test_constant_stays_at_the_peak() -> None:
    assert _rates("constant", 4, 1) == [2.0, 2.0, 2.0, 2.0]


def test_a_segment_shorter_than_the_warm_up_only_rises() -> None:
    assert _rates("linear", 2, 4) == pytest.approx([0.5, 1.0])
