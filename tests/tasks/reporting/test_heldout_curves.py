"""The held-out loss in mid-training, as the report has it: two looks per cell, by hand."""

from pathlib import Path

from tasks.gates.clock import check_clock
from tasks.reporting.collect import collect_results
from tasks.reporting.drawing import select_charts
from tasks.reporting.results import Results
from tests.tasks.reporting.comparison import PARAMS, edit_segment, edit_steps, outputs_of, write_comparison
from tests.tasks.reporting.rendered import markdown_of


def looked_at(folder: Path, *, cells: tuple[str, ...] = ("1proc", "2proc"), rows: str | None = None) -> Results:
    """Return a comparison of cells that looked at the held-out rows after steps 2 and 4; `rows`: at others."""
    params = write_comparison(folder, params={**PARAMS, "train": {**PARAMS["train"], "eval_every_steps": 2}})
    digest = outputs_of(folder, params).slices[PARAMS["heldout"]].manifest.digest
    for cell in cells:
        for part, loss in (("0-8", 3.5), ("8-16", 3.25)):
            edit_steps(folder, cell, part, heldout_loss=loss, heldout_rows=rows or digest, heldout_seconds=0.25)
    return collect_results(outputs_of(folder, params))


def test_the_curve_has_every_look_at_todays_held_out_rows(tmp_path: Path) -> None:
    results = looked_at(tmp_path)
    curves = results.quality.heldout_curves
    assert [(one.cell, one.steps, one.losses) for one in curves] == [
        ("1proc", [2, 4], [3.5, 3.25]), ("2proc", [2, 4], [3.5, 3.25]),
    ]  # fmt: skip
    assert "heldout_curves" in select_charts(results)
    assert "2proc from 3.500 to 3.250, at lowest 3.250 after step 4" in markdown_of(results)


def test_a_cell_that_looked_at_other_rows_or_at_none_has_no_curve_and_the_report_says_so(tmp_path: Path) -> None:
    for place, results in (
        ("one", looked_at(tmp_path / "one", cells=("1proc",))), ("none", looked_at(tmp_path / "other", rows="others")),
    ):  # fmt: skip
        shown = markdown_of(results)
        assert "no held-out loss in mid-training" in shown, place
        assert ("heldout_curves" in select_charts(results)) == (place == "one")


def test_seconds_on_held_out_rows_are_accounted_for_by_the_clocks_gate(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    edit_segment(tmp_path, "2proc", "0-8", span_seconds=4 + 0.625 + 2.5, heldout_seconds=2.5)
    assert check_clock(outputs_of(tmp_path, params), "2proc").verdict == "passed"
    edit_segment(tmp_path, "2proc", "0-8", heldout_seconds=0.0)
    assert check_clock(outputs_of(tmp_path, params), "2proc").verdict == "failed"
