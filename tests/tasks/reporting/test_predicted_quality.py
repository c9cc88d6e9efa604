"""What was predicted of cells with another batch, beside what they trained: against arithmetic by hand."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.records.estimate import Estimate
from tasks.records.gate import Standing
from tasks.records.noise_scale import NoiseScale
from tasks.records.outputs import Outputs
from tasks.reporting.blocks import Items, Table, list_blocks
from tasks.reporting.results import Results
from tasks.reporting.sections import batch
from tasks.reporting.tell_quality import describe_work
from tasks.reporting.time_to_quality import CellQuality, TimeToQuality, compute_time_to_quality
from tests.tasks.reporting.measured import arm, measurement
from tests.tasks.reporting.test_time_to_quality import write_with_big, write_with_local

PROVEN = Standing(state="proven", gates=[], reason=None)
PER_TOKEN = Estimate(value=1.8, low=1.6, high=2.0)
MISSED = {"1proc": [3.8, 3.2], "2big": [3.6, 3.4]}


def add_noise(outputs: Outputs, values: Sequence[float] = (4.0, 12.0, 12.0), *, cell: str = "2big") -> Outputs:
    """Return the outputs with the noise at the start and after both segments, and with measured speeds."""
    facts: dict[str, Any] = {"squared_norm": 1.0, "trace": 1.0, "num_batches": 16, "batch_size": 4, "num_parts": 4}
    ends = [("0-8", 0), *((one.facts.range, one.facts.epoch) for one in outputs.baseline.segments)]
    scales = [
        NoiseScale(**facts, range=part, epoch=epoch, value=value, low=value / 2, high=value * 2, weights_digest=digest)
        for (part, epoch), value, digest in zip(ends, values, list_digests(outputs), strict=False)
    ]
    arms = [arm("1proc", 1), arm(cell, 2, seconds=0.04, speedup=PER_TOKEN)]
    timed: Any = measurement(arms=arms)
    evaluation = outputs.evaluation.model_copy(update={"noise_scales": scales})
    return dataclasses.replace(outputs, evaluation=evaluation, measurement=timed)


def list_digests(outputs: Outputs) -> list[str | None]:
    """Return the digests of the baseline's weights at the start and after each segment."""
    return [outputs.base_model.digest, *(one.find_weights_digest("tiny_qwen2") for one in outputs.baseline.segments)]


def judge(outputs: Outputs, standing: Standing = PROVEN) -> TimeToQuality:
    """Return the time to quality as if the gates had found this of every cell."""
    found = compute_time_to_quality(outputs, dict.fromkeys(outputs.params.cells, standing))
    assert found is not None
    return found


def list_rows(results: Results, found: TimeToQuality) -> list[list[str]]:
    """Return the lines of the table of predictions; none where it does not stand there."""
    blocks = list_blocks(batch.make_blocks(results.model_copy(update={"time_to_quality": found})))
    return [row for one in blocks if isinstance(one, Table) and "Off by" in one.headings for row in map(list, one.rows)]


def tell_items(results: Results, found: TimeToQuality) -> str:
    blocks = list_blocks(batch.make_blocks(results.model_copy(update={"time_to_quality": found})))
    return " ".join(str(item) for one in blocks if isinstance(one, Items) for item in one.texts)


def test_every_figure_that_was_predicted_stands_beside_the_trained_one_and_how_far_it_is_off(
    tmp_path: Path, measured_results: Results
) -> None:
    # Level noise: twice a batch of 4 needs (12 + 8) / (12 + 4) of the tokens, and with half or twice the noise
    # (6 + 8) / (6 + 4) or (24 + 8) / (24 + 4).
    found = judge(add_noise(write_with_big(tmp_path), (12.0, 12.0, 12.0)))
    first, big = found.cells
    assert big.predicted_data is not None
    assert big.predicted is not None
    assert dataclasses.astuple(big.predicted_data) == pytest.approx((1.25, 32 / 28, 1.4))
    assert (big.predicted.value, big.predicted.low, big.predicted.high) == pytest.approx(
        (1.8 / 1.25, 1.6 / 1.4, 2.0 / (32 / 28))
    )
    assert big.data is not None
    # 10 s against 5.44 s, as in test_time_to_quality.
    assert big.predicted_error == pytest.approx(1.8 / 1.25 / (10 / 5.44) - 1)
    assert big.predicted_data_error == pytest.approx(1.25 / big.data - 1)
    assert (big.prediction_doubt, big.not_predicted) == (None, None)
    assert (first.predicted, first.predicted_data, first.not_predicted) == (None, None, None), "it is what is compared"
    off = f"{100 * (1.25 / big.data - 1):+.1f} %"
    assert list_rows(measured_results, found) == [
        ["2big", "tokens needed", "1.25x (1.14 to 1.40)", f"{big.data:.2f}x", off],
        ["2big", "as soon", "1.44x (1.14 to 1.75)", "1.84x", "-21.7 %"],
    ]  # fmt: skip


def test_a_target_that_was_not_reached_still_says_on_which_side_the_prediction_is_off(
    tmp_path: Path, measured_results: Results
) -> None:
    found = judge(add_noise(write_with_big(tmp_path, MISSED), (12.0, 12.0, 12.0)))
    big = found.cells[1]
    assert big.speedup_below == pytest.approx(10 / 6.4)
    assert big.data_above is not None
    assert (big.predicted_error, big.predicted_data_error) == (None, None), "no figure is made of a bound"
    rows = list_rows(measured_results, found)
    assert rows[1][3:] == ["not reached: below 1.56x", f"above {100 * (1.44 / (10 / 6.4) - 1):+.1f} %"]
    assert rows[0][3] == f"not reached: above {big.data_above:.2f}x"
    assert rows[0][4] == f"below {100 * (1.25 / big.data_above - 1):+.1f} %"


def test_a_cell_that_goes_over_one_of_several_ranges_more_often_has_a_prediction_that_is_doubted(
    tmp_path: Path, measured_results: Results
) -> None:
    outputs = add_noise(write_with_big(tmp_path))
    params = outputs.params
    cell = params.cells["2big"]
    assert cell.batch is not None
    more = cell.model_copy(update={"batch": cell.batch.model_copy(update={"epochs": 3})})
    often = params.model_copy(update={"cells": {**params.cells, "2big": more}})
    found = judge(dataclasses.replace(outputs, params=often))
    alike = judge(outputs)
    assert found.cells[1].predicted == alike.cells[1].predicted is not None
    doubt = found.cells[1].prediction_doubt
    assert doubt is not None
    assert doubt.startswith("it goes over each range 3 times before the next begins, 1proc 1 time: it learns longer")
    assert f"2big: {doubt}." in tell_items(measured_results, found)
    assert "goes over each range" not in tell_items(measured_results, alike)


def test_betas_that_grew_with_the_batch_are_said_with_it(tmp_path: Path) -> None:
    outputs = add_noise(write_with_big(tmp_path))
    as_before = judge(outputs).cells[1]
    cell = outputs.params.cells["2big"]
    assert cell.batch is not None
    grown = cell.model_copy(update={"batch": cell.batch.model_copy(update={"betas": "samples"})})
    params = outputs.params.model_copy(update={"cells": {**outputs.params.cells, "2big": grown}})
    big = judge(dataclasses.replace(outputs, params=params)).cells[1]
    assert (as_before.betas, big.betas) == (None, (0.9**2, 0.999**2))
    assert describe_work(as_before) == "batch 8, learning rate 0.00283"
    assert describe_work(big) == "batch 8, learning rate 0.00283, betas 0.81 and 0.998"


def test_why_nothing_is_predicted_is_said_and_nothing_of_a_withheld_cell(
    tmp_path: Path, measured_results: Results
) -> None:
    local = judge(add_noise(write_with_local(tmp_path / "local"), cell="2local"))
    why = "it is another training by more than its batch: it exchanges every 2 steps"
    assert (local.cells[1].not_predicted, local.cells[1].predicted_data) == (why, None)
    assert f"2local: nothing is predicted, {why}." in tell_items(measured_results, local)
    assert list_rows(measured_results, local) == []

    outputs = write_with_big(tmp_path / "big")
    unknown = judge(add_noise(outputs, (12.0, 12.0)))
    assert unknown.cells[1].not_predicted == (
        "the gradient noise scale is not known where each of the baseline's segments ends"
    )
    untimed = judge(dataclasses.replace(add_noise(outputs), measurement=None))
    assert untimed.cells[1].predicted_data is not None
    assert untimed.cells[1].predicted is None
    assert [row[1] for row in list_rows(measured_results, untimed)] == ["tokens needed"]

    withheld = judge(add_noise(outputs), Standing(state="withheld", gates=["A gate"], reason="it failed"))
    big: CellQuality = withheld.cells[1]
    assert (big.predicted, big.predicted_data, big.not_predicted) == (None, None, None)
    assert list_rows(measured_results, withheld) == []
