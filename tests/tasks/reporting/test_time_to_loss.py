"""When the cells came to a loss: both log 4.0, 3.9, 3.8, 3.7; their steps take 3, 3, 2, 2 s and 2, 2, 1.2, 1.2 s."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.records.outputs import Steps
from tasks.reporting.collect import collect_results
from tasks.reporting.time_to_loss import compute_time_to_loss, find_first_reached, smooth_losses
from tests.tasks.reporting.comparison import PARAMS, edit_steps, outputs_of, write_comparison
from tests.tasks.reporting.rendered import markdown_of


def times_of(folder: Path, params: dict[str, Any]) -> list[tuple[int | None, float | None]]:
    found = compute_time_to_loss(outputs_of(folder, params))
    assert found is not None
    return [(cell.step, None if cell.train_seconds is None else round(cell.train_seconds, 9)) for cell in found.cells]


def test_smoothed_losses_are_means_over_full_windows() -> None:
    losses = np.array([4.0, 2.0, 3.0, 1.0])
    assert smooth_losses(losses, 2).tolist() == [3.0, 2.5, 2.0]
    assert smooth_losses(losses, 1).tolist() == losses.tolist()
    assert smooth_losses(losses, 4).tolist() == [2.5]
    with pytest.raises(ValueError, match="1 to 4 steps; got 5"):
        smooth_losses(losses, 5)


def test_a_loss_is_reached_after_the_first_full_window_that_is_low_enough() -> None:
    losses = np.array([4.0, 2.0, 3.0, 1.0, 1.0])  # over two steps: 3.0, 2.5, 2.0, 1.0
    assert find_first_reached(losses, target=2.5, window=2) == 2
    assert find_first_reached(losses, target=2.4, window=2) == 3
    assert find_first_reached(losses, target=2.0, window=1) == 1  # one lucky step, which smoothing does not take for it
    assert find_first_reached(losses, target=0.5, window=2) is None


def test_each_cells_seconds_to_where_the_baseline_ended_are_those_of_its_steps_up_to_there(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    assert times_of(tmp_path, params) == [(4, 10.0), (4, 6.4)]
    # Rounding alone does not keep a cell from coming there; a loss that stays higher does.
    edit_steps(tmp_path, "2proc", "8-16", index=1, loss=3.7 * (1 + 1e-6))
    assert times_of(tmp_path, params) == [(4, 10.0), (4, 6.4)]
    edit_steps(tmp_path, "2proc", "8-16", index=1, loss=3.73)
    assert times_of(tmp_path, params) == [(4, 10.0), (None, None)]


def test_a_stated_loss_is_the_one_that_counts(tmp_path: Path) -> None:
    params = PARAMS | {"quality": {"target_loss": 3.8}}
    write_comparison(tmp_path, params=params)
    assert times_of(tmp_path, params) == [(3, 8.0), (3, 5.2)]
    lower = params | {"quality": {"target_loss": 3.0}}
    assert times_of(tmp_path, lower) == [(None, None), (None, None)]


def _forget_targets(folder: Path, part: str, index: int) -> None:
    """Let all labels of a step have been left out, in both cells: it logs a loss of 0, as the ranks do."""
    for cell in ("1proc", "2proc"):
        edit_steps(folder, cell, part, index=index, loss=0.0, num_targets=0)


def test_a_step_without_a_target_is_not_the_one_in_which_a_loss_was_reached(tmp_path: Path) -> None:
    for part, target, expected in (
        # 3.8 is logged by step 3, after 3 + 3 + 2 s and 2 + 2 + 1.2 s: those of step 2 are spent all the same.
        ("0-8", 3.8, [(3, 8.0), (3, 5.2)]), ("0-8", 0.5, [(None, None)] * 2),
        # Nor is it where the baseline ended.
        ("8-16", None, [(3, 8.0), (3, 5.2)]),
    ):  # fmt: skip
        params, folder = PARAMS | {"quality": {"target_loss": target}}, tmp_path / f"{part}-{target}"
        write_comparison(folder, params=params)
        _forget_targets(folder, part, 1)
        assert times_of(folder, params) == expected


def test_a_training_without_any_target_has_no_time_to_a_loss(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    for part, index in (("0-8", 0), ("0-8", 1), ("8-16", 0), ("8-16", 1)):
        _forget_targets(tmp_path, part, index)
    results = collect_results(outputs_of(tmp_path, params))
    assert results.quality.time_to_loss is None
    assert "Time to quality" not in markdown_of(results)
    assert [curve.losses for curve in results.loss_curves] == [[], []]


def test_long_curves_are_smoothed_over_a_twentieth_of_their_steps(tmp_path: Path) -> None:
    outputs = outputs_of(tmp_path, write_comparison(tmp_path))
    for num_steps, window in ((39, 1), (40, 2), (999, 49), (5000, 50)):
        losses = np.linspace(4.0, 3.0, num_steps)
        columns = dict.fromkeys([field.name for field in dataclasses.fields(Steps)], losses)
        steps = Steps(**columns | {"step": np.arange(num_steps), "seconds": np.ones(num_steps)})
        for run in outputs.runs.values():
            run.__dict__["steps"] = steps  # where cached_property keeps what was read
        found = compute_time_to_loss(outputs)
        assert found is not None
        assert found.window_steps == window
        assert found.target_loss == pytest.approx(1.005 * losses[-window:].mean())
