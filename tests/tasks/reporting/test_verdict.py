"""What the verdict and the first screen say of figures that decide otherwise; whole reports stand in tests/golden."""

import pytest

from tasks.records.gate import BORNE_OUT, QUIET_TURNS
from tasks.reporting.collect import collect_results
from tasks.services.tracked import collect_final_figures, make_gate_tags
from tests.tasks.reporting.comparison import (
    PARAMS,
    THREE_CELLS,
    edit_json,
    edit_segment,
    outputs_of,
    write_comparison,
)
from tests.tasks.reporting.measured import arm, estimate, measurement, preflight, with_speedup, write_measurement
from tests.tasks.reporting.rendered import lacks, line_of, markdown_of


def results_of(folder, found, params=None):
    """Return the results of a comparison whose training took as long as its blocks."""
    seconds = {one.cell: [50 * one.step_seconds.value] * 2 for one in found.speeds.values()}
    params = write_comparison(folder, params=params, seconds=seconds)
    edit_json(folder / "machine.json", num_cpus=4)
    write_measurement(folder, found)
    return collect_results(outputs_of(folder, params))


@pytest.mark.parametrize(
    ("speedup", "relative", "beside", "figures", "worth"),
    [
        (0.8, 0.025, None, "slower|0.78x to 0.82x|40 %", "No:|25 % more time"),
        (1.01, 0.025, None, "no measurable difference|0.98x to 1.04x|67.3 ms", "98 % more"),
        (2.03, 0.025, None, "101 %", "1 % less device time|No measurable difference: 2 jobs"),
        # 1.9 / 2 is 5 % less than linear, and known to 10 %.
        (1.9, 0.1, None, "1.71x to 2.09x", "Yes:|No measurable difference: 2 jobs"),
        (1.9, 0.025, None, "95 %", "Yes:|No: 2 jobs|5 % more results"),
        (2.1, 0.025, None, "suspect: 2proc is above linear (105 %)", "Yes: 2 jobs|5 % fewer"),
        # An interval of more than 10 % is said by its ends; surely faster, though nobody knows by how much.
        (1.6, 0.2, None, "trains 1.28x to 1.92x|1.60x in the mean|the ±3.0 %", "Yes"),
        # One process on all cores does it, too: 1.6 / 1.57 may be 1, 1.6 / 1.3 is not, 1.6 / 1.8 is below it.
        (1.6, 0.025, (1.57,), "1.02x (", "Not clearly:|1.02x (0.98"),
        (1.6, 0.025, (1.3, 0.4), "1.23x (", "Not clearly:"),
        (1.6, 0.025, (1.3,), "1.23x (", "Yes:|as fast as 1proc with 2 threads"),
        (1.6, 0.025, (1.8,), "0.89x (", "No: 38 % less"),
        (1.01, 0.2, None, "cannot be told|the interval holds 1", "may be slower"),
    ],
)
def test_an_interval_decides_what_is_claimed(tmp_path, speedup, relative, beside, figures, worth):
    # One look before measuring does not outvote the turns. With the parts of a waterfall contention would slow the
    # jobs side by side.
    given = with_speedup(
        speedup, relative, beside={"1proc with 2 threads": estimate(*beside)} if beside else {}, waterfalls=[],
        preflight=preflight(is_fit=False),
    )  # fmt: skip
    results = results_of(tmp_path, given)
    state = "unproven" if "cannot be told" in figures else "proven"
    assert (results.state, results.cells[1].standing.state) == (state, state)
    content = results.model_dump(mode="json")
    assert ("final/speedup" in collect_final_figures(content)["2proc"]) == (state == "proven")
    assert make_gate_tags(content)["2proc"]["speedup"].startswith(state)
    assert not lacks(results.verdict, *figures.split("|"), "all 22")
    questions = [f"Worth it for {jobs}?" for jobs in ("one job", "many jobs")]
    assert not lacks(" ".join(line_of(results, question) for question in questions), *worth.split("|"))
    assert ("make rebench" in line_of(results, "What next?")) == (state == "unproven")


def test_the_headline_is_the_best_cell_that_passed_and_says_what_is_withheld_and_why(tmp_path):
    took = {"1proc": 0.12, "2proc": 0.08, "4proc": 0.05}
    arms = [arm(cell, int(cell[0]), seconds=its, speedup=estimate(0.12 / its)) for cell, its in took.items()]
    results = results_of(tmp_path, measurement(*arms, waterfalls=[]), THREE_CELLS)
    assert not lacks(results.verdict, "4proc trains 2.40x", "60 %", "50.0 ms", "120 ms", "2proc 1.50x", "75 %")
    edit_segment(tmp_path, "4proc", "8-16", checked_updates=[])
    results = collect_results(outputs_of(tmp_path, THREE_CELLS))
    assert [cell.standing.state for cell in results.cells] == ["proven", "proven", "unproven"]
    assert results.verdict.startswith("Proven: 2proc trains 1.50x")
    assert not lacks(results.verdict, "4proc 2.40x", "4proc is unproven", "“Update equivalence”")
    # The gate that needs the fewest words speaks for all.
    edit_json(tmp_path / "machine.json", num_cpus=2)
    edit_segment(tmp_path, "4proc", "8-16", parameter_checksums=["05" * 8, "b", "c", "d"])
    verdict = collect_results(outputs_of(tmp_path, THREE_CELLS)).verdict
    assert verdict.startswith("Proven: 2proc trains 1.50x")
    assert not lacks(verdict, "4proc is withheld", "“Same parameters on all ranks”", "1 other gate")


@pytest.mark.parametrize(
    ("of_four", "says"),
    [(1.3, "Proven: 4proc trains 1.30x"), (0.8, "Unproven (the interval holds 1): whether 2proc is")],
)
def test_what_may_be_1_stands_behind_what_is_faster_and_before_what_is_slower(tmp_path, of_four, says):
    found = {"2proc": estimate(1.35, 0.3), "4proc": estimate(of_four)}
    arms = [arm(cell, int(cell[0]), seconds=0.12 / one.value, speedup=one) for cell, one in found.items()]
    given = measurement(arm("1proc", 1, seconds=0.12), *arms, waterfalls=[], beside={})
    results = results_of(tmp_path, given, THREE_CELLS)
    assert results.verdict.startswith(says)
    headline = collect_final_figures(results.model_dump(mode="json"))[None]
    assert headline.get("final/speedup") == (of_four if results.state == "proven" else None)


def test_cells_that_tie_are_called_a_tie_and_what_other_figures_say_stands_beside(tmp_path):
    cells = PARAMS["cells"] | {"ddp-2": {"strategy": "ddp", "world_size": 2}}
    for seconds, is_tie in ((0.043, True), (0.048, False)):
        two = arm("2proc", 2, of_all_turns=estimate(1.3))
        arms = [arm("1proc", 1), two, arm("ddp-2", 2, seconds=seconds)]
        results = results_of(tmp_path / str(is_tie), measurement(*arms), PARAMS | {"cells": cells})
        assert ("2proc, in a tie with ddp-2, trains" in results.verdict) == is_tie
        edit_segment(tmp_path / str(is_tie), "ddp-2", "8-16", checked_updates=[])
        doubtful = collect_results(outputs_of(tmp_path / str(is_tie), PARAMS | {"cells": cells})).verdict
        assert ("a tie" in doubtful, "others: ddp-2 1." in doubtful) == (False, True)
        assert "all turns, loud ones too, give 1.30x" in results.verdict


def test_weak_scaling_compares_samples_per_second(tmp_path):
    two = arm("2proc", 2, samples_per_second=95.2, speedup=estimate(68 / 42))
    results = results_of(tmp_path, measurement(arm("1proc", 1), two, scaling="weak"))
    assert not lacks(results.verdict, "weak scaling", "95.2 against 58.8 samples per second")
    # What it says of this job, whose batch stays, was not measured.
    assert line_of(results, "Worth it for one job?").startswith("Not measured")
    assert len(lacks(markdown_of(results), "many jobs?", "Cost of the speedup", "Results per hour", "0.81 times")) == 4


@pytest.mark.parametrize(("share", "is_withheld"), [(0.049, False), (0.051, True)])
@pytest.mark.parametrize("cell", ["1proc", "2proc"])
def test_waiting_for_data_in_the_measured_blocks_withholds_what_waiting_in_the_training_would(
    tmp_path, cell, share, is_withheld
):
    arms = [arm(name, size, data_wait_share=share * (name == cell)) for name, size in (("1proc", 1), ("2proc", 2))]
    verdict = results_of(tmp_path, measurement(*arms)).verdict
    assert (not lacks(verdict, "“Not data-bound” failed", cell, "5.1 %")) == is_withheld
    assert verdict.startswith("Withheld") == is_withheld


def test_one_cell_has_no_speedup(tmp_path):
    params = PARAMS | {"cells": {"1proc": PARAMS["cells"]["1proc"]}}
    verdict = results_of(tmp_path, measurement(arm("1proc", 1), waterfalls=[]), params).verdict
    assert not lacks(verdict, "Not measured: 1proc 6.80 s per epoch", "a speedup needs a second cell")


def test_who_was_disturbed_is_told_to_measure_again_and_who_did_other_work_to_mend_it(withheld_measured_results):
    def find_next(*failed):
        gates = []
        for gate in withheld_measured_results.gates:
            verdict = "failed" if gate.name in failed else "passed"
            findings = [one.model_copy(update={"outcome": verdict}) for one in gate.findings]
            gates.append(gate.model_copy(update={"findings": findings}))
        return line_of(withheld_measured_results.model_copy(update={"gates": gates}), "What next?")

    assert "make rebench" in find_next(QUIET_TURNS, BORNE_OUT)
    for failed in ((BORNE_OUT,), (QUIET_TURNS, "Same parameters on all ranks")):
        assert "docs/gates.md" in find_next(*failed)
        assert "make rebench" not in find_next(*failed)
