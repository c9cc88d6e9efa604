"""Every figure, recomputed by hand: see comparison.py for what was written."""

import json
from itertools import product
from pathlib import Path

import pytest

from tasks.reporting.collect import collect_results
from tasks.reporting.results import Results
from tests.tasks.reporting.comparison import (
    PARAMS,
    RANGES,
    STEPS_PER_SEGMENT,
    edit_json,
    edit_steps,
    outputs_of,
    write_comparison,
)  # fmt: skip
from tests.tasks.reporting.rendered import drawn_html_of


def test_the_figures_of_each_cell_are_those_worked_out_by_hand(clean_results: Results) -> None:
    one, two = clean_results.cells
    assert [one.cell, two.cell] == ["1proc", "2proc"]
    assert (one.is_baseline, two.is_baseline) == (True, False)
    assert (one.seconds_per_epoch, two.seconds_per_epoch) == (10.0, 6.4)
    # Rows 0-7 have 3+4+5+3+4+5+3+4 = 31 tokens to learn, rows 8-15 5+3+4+5+3+4+5+3 = 32.
    assert (one.whole.num_tokens, one.whole.num_samples, one.whole.num_steps) == (63, 16, 4)
    assert (one.whole.tokens_per_second, two.whole.tokens_per_second) == (6.3, 63 / 6.4)
    assert (one.whole.samples_per_second, two.whole.samples_per_second) == (1.6, 2.5)
    assert two.whole.data_wait_share == pytest.approx(0.02 / 6.4)
    assert two.whole.loss == pytest.approx((3.95 * 31 + 3.75 * 32) / 63)
    assert two.checkpoint_seconds == 1.0
    # 4,000 bytes of gradient per step.
    assert two.exchanged_mib_per_step == pytest.approx(4000 / 2**20)


def test_an_epoch_is_one_pass_over_all_ranges(tmp_path: Path) -> None:
    params = PARAMS | {"train": PARAMS["train"] | {"epochs": 2}}
    seconds = {"1proc": [6.0, 5.0, 4.0, 3.0], "2proc": [4.0, 4.0, 2.0, 2.0]}
    results = collect_results(outputs_of(tmp_path, write_comparison(tmp_path, params=params, seconds=seconds)))
    one, two = results.cells
    assert [(part.epoch, part.train_seconds, part.num_tokens) for part in one.epochs] == [(1, 10.0, 63), (2, 8.0, 63)]
    assert [(part.epoch, part.train_seconds) for part in two.epochs] == [(1, 6.0), (2, 6.0)]
    assert (one.seconds_per_epoch, two.seconds_per_epoch) == (9.0, 6.0)
    assert [part.train_seconds for part in two.ranges] == [8.0, 4.0]
    assert [cell.standing.state for cell in results.cells] == ["not measured", "not measured"]


def test_losses_of_exactly_nothing_are_compared_and_drawn(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    for cell, part, index in product(("1proc", "2proc"), RANGES, range(STEPS_PER_SEGMENT)):
        edit_steps(tmp_path, cell, part, index=index, loss=0.0)
    evaluation = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    for model in evaluation["models"].values():
        model["loss"] = 0.0
    edit_json(tmp_path / "evaluation" / "evaluation.json", **evaluation)
    results = collect_results(outputs_of(tmp_path, params))
    assert [gate.name for gate in results.gates if gate.verdict == "failed"] == []
    assert "0.0000" in drawn_html_of(results)
    edit_steps(tmp_path, "2proc", RANGES[1], loss=1e-9)
    results = collect_results(outputs_of(tmp_path, params))
    assert [gate.name for gate in results.gates if gate.verdict == "failed"] == ["Loss curves coincide"]
