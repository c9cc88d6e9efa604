"""What the verdict and the first screen say of figures that decide otherwise; whole reports stand in tests/golden."""

import pytest

from tasks.records.gate import BORNE_OUT, QUIET_TURNS
from tasks.reporting.charts.frontier import list_places
from tasks.reporting.collect import collect_results
from tasks.reporting.verdict import make_verdict
from tasks.services.tracked import collect_final_figures, make_gate_tags
from tests.tasks.reporting.comparison import (
    PARAMS,
    THREE_CELLS,
    drop_updates,
    edit_json,
    edit_segment,
    outputs_of,
    write_comparison,
)
from tests.tasks.reporting.measured import arm, estimate, measurement, preflight, with_speedup, write_measurement
from tests.tasks.reporting.rendered import html_of, lacks, line_of, markdown_of

THREADS = "1proc with 2 threads"
THREE = {"1proc": 0.12, "2proc": 0.08, "4proc": 0.05}


def results_of(folder, found, params=None):
    """Return the results of a comparison whose training took as long as its blocks."""
    seconds = {one.cell: [50 * one.step_seconds.value] * 2 for one in found.speeds.values()}
    params = write_comparison(folder, params=params, seconds=seconds)
    edit_json(folder / "machine.json", num_cpus=4)
    write_measurement(folder, found)
    return collect_results(outputs_of(folder, params))


def measure_three():
    ratios = {cell: None if cell == "1proc" else estimate(THREE["1proc"] / took) for cell, took in THREE.items()}
    arms = [arm(cell, int(cell[0]), seconds=took, speedup=ratios[cell]) for cell, took in THREE.items()]
    return measurement(*arms, waterfalls=[])


@pytest.mark.parametrize(
    ("found", "state", "figures", "worth"),
    [
        (with_speedup(0.8), "proven", ("slower", "0.78x to 0.82x", "40 %"), ("No:", "25 % more time")),
        (with_speedup(1.01), "proven", ("no measurable difference", "0.98x to 1.04x", "67.3 ms"), ("98 % more",)),
        (with_speedup(2.03), "proven", ("101 %",), ("1 % less device time", "No measurable difference: 2 jobs")),
        # 1.9 / 2 is 5 % less than linear, and known to 10 %.
        (with_speedup(1.9, 0.1), "proven", ("1.71x to 2.09x",), ("Yes:", "No measurable difference: 2 jobs")),
        (with_speedup(1.9, 0.025), "proven", ("95 %",), ("Yes:", "No: 2 jobs", "5 % more results")),
        (with_speedup(2.1), "proven", ("suspect: 2proc is above linear (105 %)",), ("Yes: 2 jobs", "5 % fewer")),
        # An interval of more than 10 % is said by its ends; surely faster, though nobody knows by how much.
        (with_speedup(1.6, 0.2), "proven", ("trains 1.28x to 1.92x", "1.60x in the mean", "the ±3.0 %"), ("Yes",)),
        # One process on all cores does it, too: 1.6 / 1.57 may be 1, 1.6 / 1.3 is not, 1.6 / 1.8 is below it.
        (with_speedup(1.6, beside={THREADS: estimate(1.57)}), "proven", ("1.02x (",), ("Not clearly:", "1.02x (0.98")),
        (with_speedup(1.6, beside={THREADS: estimate(1.3, 0.4)}), "proven", ("1.23x (",), ("Not clearly:",)),
        (with_speedup(1.6, beside={THREADS: estimate(1.3)}), "proven", ("1.23x (",), ("Yes:", f"as fast as {THREADS}")),
        (with_speedup(1.6, beside={THREADS: estimate(1.8)}), "proven", ("0.89x (",), ("No: 38 % less",)),
        (with_speedup(1.01, 0.2), "unproven", ("cannot be told", "the interval holds 1"), ("may be slower",)),
        # One look before measuring does not outvote the turns.
        (with_speedup(1.6, preflight=preflight("others use 1.4 of 2 cores")), "proven", ("1.60x",), ("Yes",)),
    ],
)  # fmt: skip
def test_an_interval_decides_what_is_claimed(tmp_path, found, state, figures, worth):
    # With the parts of a waterfall contention would slow the jobs side by side.
    results = results_of(tmp_path, found.model_copy(update={"waterfalls": []}))
    assert (results.state, results.cells[1].standing.state) == (state, state)
    content = results.model_dump(mode="json")
    assert ("final/speedup" in collect_final_figures(content)["2proc"]) == (state == "proven")
    assert make_gate_tags(content)["2proc"]["speedup"].startswith(state)
    places = list_places(results)
    assert [place.is_proven for place in places] == [True, state == "proven"]
    assert not lacks(results.verdict, *figures, "all 22")
    assert ("suspect" in results.verdict) == (figures[0].startswith("suspect"))
    questions = [f"Worth it for {jobs}?" for jobs in ("one job", "many jobs")]
    assert not lacks(" ".join(line_of(results, question) for question in questions), *worth)
    assert ("make rebench" in line_of(results, "What next?")) == (state == "unproven")
    assert f'<span class="state">{state.capitalize()}' in html_of(results)


def test_the_headline_is_the_best_cell_that_passed_and_says_what_is_withheld_and_why(tmp_path):
    results = results_of(tmp_path, measure_three(), THREE_CELLS)
    assert not lacks(results.verdict, "4proc trains 2.40x", "60 %", "50.0 ms", "120 ms", "2proc 1.50x", "75 %")
    drop_updates(tmp_path, "4proc")
    results = collect_results(outputs_of(tmp_path, THREE_CELLS))
    assert [cell.standing.state for cell in results.cells] == ["proven", "proven", "unproven"]
    assert results.verdict.startswith("Proven: 2proc trains 1.50x")
    assert not lacks(results.verdict, "4proc 2.40x", "4proc is unproven", "“Update equivalence”")
    edit_json(tmp_path / "machine.json", num_cpus=2)
    results = collect_results(outputs_of(tmp_path, THREE_CELLS))
    assert results.verdict.startswith("Proven: 2proc trains 1.50x")
    # The gate that needs the fewest words speaks for all.
    edit_segment(tmp_path, "4proc", "8-16", parameter_checksums=["05" * 8, "b", "c", "d"])
    verdict = collect_results(outputs_of(tmp_path, THREE_CELLS)).verdict
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
        two = arm("2proc", 2, of_all_turns=estimate(1.3), of_medians=1.61 if is_tie else 1.7)
        arms = [arm("1proc", 1), two, arm("ddp-2", 2, seconds=seconds)]
        results = results_of(tmp_path / str(is_tie), measurement(*arms), PARAMS | {"cells": cells})
        assert ("2proc, in a tie with ddp-2, trains" in results.verdict) == is_tie
        # The date is that of the blocks, 1.7e9 seconds after 1970.
        assert not lacks(results.verdict, "2023-11-14")
        drop_updates(tmp_path / str(is_tie), "ddp-2")
        doubtful = collect_results(outputs_of(tmp_path / str(is_tie), PARAMS | {"cells": cells})).verdict
        assert ("a tie" in doubtful, "others: ddp-2 1." in doubtful) == (False, True)
        assert "all turns, loud ones too, give 1.30x" in results.verdict
        assert ("by medians, which disagree" in markdown_of(results)) != is_tie
    first = results.cells[0].model_copy(update={"strategy": "fsdp2"})
    verdict = make_verdict(results.model_copy(update={"cells": [first, *results.cells[1:]]}))
    assert "1proc is one rank inside fsdp2, no plain process" in verdict


def test_weak_scaling_compares_samples_per_second(tmp_path):
    two = arm("2proc", 2, samples_per_second=95.2, speedup=estimate(68 / 42))
    results = results_of(tmp_path, measurement(arm("1proc", 1), two, scaling="weak"))
    assert not lacks(results.verdict, "weak scaling", "95.2 against 58.8 samples per second")
    # What it says of this job, whose batch stays, was not measured.
    assert line_of(results, "Worth it for one job?").startswith("Not measured")
    assert line_of(results, "Worth it for many jobs?") == ""
    assert lacks(markdown_of(results), "Cost of the speedup", "Results per hour", "0.81 times") == [
        "Cost of the speedup", "Results per hour", "0.81 times",
    ]  # fmt: skip


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
