"""reports/history.csv and the section History of the report, from the comparison written by hand."""

import csv
from itertools import product

import pytest

from tasks.process.failure import DataError
from tasks.records.gate import BORNE_OUT
from tasks.reporting.collect import collect_results
from tasks.reporting.history_file import COLUMNS, add_history
from tests.tasks.reporting.borne_out import set_step_seconds
from tests.tasks.reporting.comparison import edit_segment, outputs_of, record_as, setting_of, write_comparison
from tests.tasks.reporting.measured import arm, estimate, measurement, write_measurement

SLOWER = {"seconds": 0.0525, "speedup": estimate(0.068 / 0.0525)}


@pytest.fixture
def measured(tmp_path):
    """What params.yaml holds; the comparison in tmp_path has a measurement: 2proc takes 42 ms."""
    params = write_comparison(tmp_path)
    write_measurement(tmp_path)
    return params


def remember(folder, params):
    """Do of the stage what concerns the history, and draw nothing."""
    outputs = outputs_of(folder, params)
    return add_history(collect_results(outputs), outputs, folder / "reports" / "history.csv")


def measure_again(folder, **of_2proc):
    """Write another measurement; with changes to 2proc."""
    again = measurement(arm("1proc", 1), arm("2proc", 2, **of_2proc), seconds=62.5)
    write_measurement(folder, again)


def lines_of(folder):
    """Return history.csv as any spreadsheet reads it."""
    with (folder / "reports" / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_finished_comparison_adds_a_line_per_cell_the_same_results_nothing_and_another_session_its_own(
    tmp_path, measured
):
    first = remember(tmp_path, measured)
    one, two = lines_of(tmp_path)
    assert list(one) == COLUMNS
    assert (one["cell"], one["world_size"], one["speedup"]) == ("1proc", "1", "")
    expected = {"finished_at": first.created_at, "name": "by-hand", "cell": "2proc", "gates_passed": "yes"}
    expected |= {"cpu": "A CPU", "gpus": "", "torch": "2.15.0", "preflight": "fit to measure", "num_rounds": "24"}
    assert two.items() >= expected.items()
    before = (tmp_path / "reports" / "history.csv").read_bytes()
    assert remember(tmp_path, measured).history == first.history
    # How often is logged makes no other work.
    logged = {**measured, "train": {**measured["train"], "log_every_steps": 7}}
    record_as(tmp_path, logged)
    remember(tmp_path, logged)
    assert (tmp_path / "reports" / "history.csv").read_bytes() == before
    measure_again(tmp_path)
    remember(tmp_path, measured)
    assert len(lines_of(tmp_path)) == 4
    assert (tmp_path / "reports" / "history.csv").read_bytes().startswith(before)


@pytest.mark.parametrize("change", ["weight decay", "environment"])
def test_a_session_of_other_work_or_arithmetic_is_not_compared_with_this_one(tmp_path, measured, change):
    remember(tmp_path, measured)
    if change == "weight decay":
        measured = {**measured, "train": {**measured["train"], "weight_decay": 0.1}}
        record_as(tmp_path, measured)
    else:
        variables = {"OMP_NUM_THREADS": "1", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}
        for cell, part in product(measured["cells"], measured["ranges"]):
            edit_segment(tmp_path, cell, part, settings=[setting_of(measured) | {"environment": variables}])
    measure_again(tmp_path, seconds=0.030)
    history = remember(tmp_path, measured).history
    assert history.changes == []
    assert len({line["params_digest"] for line in lines_of(tmp_path)}) == 2


def test_a_withheld_speedup_is_in_no_record_and_in_no_history_shown(tmp_path, measured):
    remember(tmp_path, measured)
    measure_again(tmp_path, **SLOWER)
    edit_segment(tmp_path, "2proc", data_wait_seconds=1.0)
    history = remember(tmp_path, measured).history
    assert [line["gates_passed"] for line in lines_of(tmp_path)] == ["yes", "yes", "yes", "no"]
    assert [line["speedup"] != "" for line in lines_of(tmp_path)] == [False, True, False, False]
    assert (history.regression, {one.speedup for one in history.records}) == (None, {None})
    # The training is repaired: another comparison, of the same measurement.
    edit_segment(tmp_path, "2proc", data_wait_seconds=0.01)
    repaired = remember(tmp_path, measured).history
    assert "speedup of 2proc 1.62x -> 1.30x" in str(repaired.regression)
    assert len(lines_of(tmp_path)) == 6


@pytest.mark.parametrize(
    ("trained", "code"),
    [
        ({"2proc": 0.042}, "speedup_not_borne_out"),
        ({"1proc": 0.02, "2proc": 0.0159}, "other_seconds"),
    ],
)
def test_blocks_that_a_training_of_long_ago_does_not_bear_out_are_a_regression_without_a_speedup(
    tmp_path, measured, trained, code
):
    remember(tmp_path, measured)
    # Such a record is none to compare with: it is a regression until it is trained again.
    for milliseconds in (52.5, 52.6):
        measure_again(tmp_path, seconds=milliseconds / 1000)
        for cell, seconds in trained.items():
            set_step_seconds(tmp_path / "runs" / cell, seconds)
        results = remember(tmp_path, measured)
        assert results.failed_gates == [BORNE_OUT]
        assert {found.code for found in results.gates[-1].findings if found.outcome == "failed"} == {code}
        assert (lines_of(tmp_path)[-1]["gates_passed"], lines_of(tmp_path)[-1]["speedup"]) == ("not borne out", "")
        changes = [(change.cell, change.quantity, change.is_regression) for change in results.history.changes]
        assert changes == [("1proc", "step time", False), ("2proc", "step time", True)]
        assert f"2proc 42.0 ms -> {milliseconds} ms" in results.history.regression
    # Another gate may be of the blocks.
    edit_segment(tmp_path, "2proc", data_wait_seconds=1.0)
    assert remember(tmp_path, measured).history.regression is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("driver,", "", "its columns are finished_at, name"),
        ("0.042,", "nan,", "line 3: step_seconds: "),
        ("fit to measure\n", "fit to measure,more\n", "line 2 has 26 fields of 25"),
    ],
)
def test_a_file_that_is_no_history_of_this_version_ends_in_one_line_and_stays(tmp_path, measured, old, new, says):
    remember(tmp_path, measured)
    path = tmp_path / "reports" / "history.csv"
    damaged = path.read_text().replace(old, new, 1)
    assert damaged != path.read_text()
    path.write_text(damaged)
    with pytest.raises(DataError, match=rf"^[^\n]*{says}[^\n]*; move it away to begin a new one$"):
        remember(tmp_path, measured)
    assert path.read_text() == damaged
