"""When the cells came to a loss: both log 4.0, 3.9, 3.8, 3.7; their steps take 3, 3, 2, 2 s and 2, 2, 1.2, 1.2 s."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.records.outputs import Steps
from tasks.reporting.collect import collect_results
from tasks.reporting.results import Results
from tasks.reporting.time_to_loss import TimeToLoss, compute_time_to_loss, find_first_reached, smooth_losses
from tests.tasks.reporting.comparison import PARAMS, edit_steps, outputs_of, write_comparison
from tests.tasks.reporting.page import Page
from tests.tasks.reporting.rendered import html_of, markdown_of


def found_in(results: Results) -> TimeToLoss:
    found = results.quality.time_to_loss
    assert found is not None
    return found


def times_of(folder: Path, params: dict[str, Any]) -> list[tuple[int | None, float | None]]:
    found = found_in(collect_results(outputs_of(folder, params)))
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


def test_long_curves_are_smoothed_over_a_twentieth_of_their_steps(tmp_path: Path) -> None:
    outputs = outputs_of(tmp_path, write_comparison(tmp_path))
    for num_steps, window in ((39, 1), (40, 2), (999, 49), (5000, 50)):
        losses = np.linspace(4.0, 3.0, num_steps)
        columns = dict.fromkeys([field.name for field in dataclasses.fields(Steps)], losses)
        steps = Steps(**columns | {"step": np.arange(num_steps), "seconds": np.ones(num_steps)})
        for run in outputs.runs.values():
            run.__dict__["steps"] = steps  # where cached_property keeps what was read
        found = compute_time_to_loss(outputs)
        assert found.window_steps == window
        assert found.target_loss == pytest.approx(1.005 * losses[-window:].mean())


def test_seconds_that_cannot_be_compared_are_not_said_to_tell_the_speed(
    clean_results: Results, withheld_results: Results
) -> None:
    assert "so the seconds tell the speed" in markdown_of(clean_results)
    assert "so the seconds tell the speed" not in markdown_of(withheld_results)
    assert "Time to quality" in markdown_of(withheld_results)


def test_page_and_markdown_show_the_seconds(clean_results: Results, tmp_path: Path) -> None:
    params = PARAMS | {"quality": {"target_loss": 3.0}}
    write_comparison(tmp_path, params=params)
    never = collect_results(outputs_of(tmp_path, params))
    for render in (lambda results: Page(html_of(results)).text, markdown_of):
        text = " ".join(render(clean_results).replace("|", " ").split())
        # 3.7 and half a percent.
        assert "was 3.7185 nats per token for the first time, within 0.5 % of where 1proc ended" in text
        assert "1proc 4 10.0 s" in text
        assert "2proc 4 6.40 s" in text
        text = " ".join(render(never).replace("|", " ").split())
        assert "was 3.0000 nats per token for the first time, the loss that params.yaml states" in text
        assert "2proc never n/a" in text
