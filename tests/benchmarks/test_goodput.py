"""The score of predicted times to quality, by hand."""

import dataclasses
import json

import pytest

from benchmarks.goodput import Score, make_row, summarise
from tasks.records.estimate import Estimate


def score(predicted: float, measured: float | None, *, below: float | None = None) -> Score:
    def near(value: float) -> Estimate:
        return Estimate(value=value, low=value * 0.9, high=value * 1.1)

    return Score(
        comparison="c", cell="2big", batch=32, learning_rate=2e-3, noise_scale=64.0, target_loss=5.0,
        speed_per_token=near(1.8), predicted=near(predicted), measured=measured, low=None, high=None, data=1.2,
        below=below, data_above=None if below is None else 1.8 / below,
    )  # fmt: skip


def test_errors_are_relative_to_what_was_measured_and_cells_without_a_time_have_none() -> None:
    scores = [score(1.5, 1.4), score(1.5, 1.2), score(1.5, None)]
    assert [one.error for one in scores] == [pytest.approx(1.5 / 1.4 - 1), pytest.approx(0.25), None]
    told = summarise(scores)
    assert told.startswith(
        "1 of 3 cells did not come to the target in every seed; 0 of these predictions are refuted: too high by more "
        "than 15.0 %. Of 2 predictions 1 are within 15.0 %"
    )
    # Root of the mean of ln(1.5 / 1.4)^2 and ln(1.25)^2.
    assert "0.165" in told
    assert make_row(scores[1])[-3:] == ["1.50x (1.35 to 1.65)", "1.20x", "+25.0 %"]
    assert make_row(scores[1])[7] == "1.20x"
    assert make_row(scores[2])[-2:] == ["not reached", "n/a"]
    assert [make_row(one)[1] for one in (scores[0], dataclasses.replace(scores[0], doubt="its rows are others"))] == [
        "2big", "2big, doubted"
    ]  # fmt: skip
    assert json.loads(json.dumps(scores[0].as_json()))["predicted"]["value"] == 1.5


def test_who_did_not_come_to_the_target_in_time_refutes_what_was_predicted() -> None:
    scores = [score(1.5, None, below=1.2), score(1.5, None, below=1.45)]
    told = summarise(scores)
    assert told.startswith("2 of 2 cells did not come to the target in every seed; 1 of these predictions are refuted")
    assert make_row(scores[0])[-2:] == ["not reached: below 1.20x", "above +25.0 %"]
    assert make_row(scores[0])[8] == "above 1.50x"
