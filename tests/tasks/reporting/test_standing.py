"""What the gates leave of each cell's speedup, and that nothing else of a cell goes with it."""

import pytest

from tasks.gates.checks import CHECKS, CHECKS_OF_BLOCKS, Check, check_gates, compute_standings
from tasks.records.gate import CellFinding, Gate
from tasks.records.measurement import MeasurementFile
from tasks.reporting import data_files
from tasks.reporting.collect import collect_results
from tasks.reporting.document import render_model_card
from tasks.services.tracked import collect_final_figures, make_gate_tags
from tests.tasks.reporting.comparison import (
    THREE_CELLS,
    edit_json,
    edit_segment,
    make_checked_update,
    outputs_of,
    write_comparison,
)
from tests.tasks.reporting.measured import advice, arm, measurement, waterfall, write_measurement
from tests.tasks.reporting.rendered import lacks, markdown_of

SECONDS = {"1proc": [6.0, 4.0], "2proc": [4.0, 2.4], "4proc": [2.5, 1.5]}


def write_three(folder, *, num_cpus=2):
    """Write a comparison of 1, 2 and 4 processes; the four share two cores unless there are more."""
    params = write_comparison(folder, params=THREE_CELLS, seconds=SECONDS)
    edit_json(folder / "machine.json", num_cpus=num_cpus)
    return params


def measured_three():
    """Return a measurement of the three, with changes tried on 2proc and one on 4proc."""
    tried = advice()
    better = tried.tried[0].model_copy(update={"cell": "4proc", "change": "larger buckets"})
    return measurement(
        arm("1proc", 1), arm("2proc", 2), arm("4proc", 4, seconds=0.025),
        waterfalls=[waterfall(), waterfall("4proc")],
        advice=tried.model_copy(update={"tried": [better, *tried.tried], "combined": better}),
    )  # fmt: skip


def test_one_bad_cell_of_three_withholds_its_own_speedup_only_and_in_every_output(tmp_path):
    params, given = write_three(tmp_path), measured_three()
    write_measurement(tmp_path, given)
    results = collect_results(outputs_of(tmp_path, params))
    _, two, four = results.cells
    assert [cell.standing.state for cell in results.cells] == ["proven", "proven", "withheld"]
    assert four.standing.gates == ["Every rank has a device of its own"]
    assert (two.speedup, four.speedup) == (given.speedups["2proc"], None)
    found = results.measurement
    assert (found.waterfalls, found.beside) == (given.waterfalls[:1], given.beside)
    assert [one.cell for one in found.advice.tried] == ["2proc"] * 3
    assert found.advice.combined is None
    content = results.model_dump(mode="json")
    figures, tags = collect_final_figures(content), make_gate_tags(content)
    assert not [key for key in figures["4proc"] if "speedup" in key or "efficiency" in key]
    own = "gate.Every rank has a device of its own"
    assert tags[None][own] == tags["4proc"][own]
    assert (tags["2proc"]["speedup"], tags[None]["speedup.4proc"][:8]) == ("proven", "withheld")
    assert data_files.collect_metrics(results)["cell"] == "2proc"
    card = render_model_card(results, cell="4proc", repo_id=None, checkpoints=[])
    # 68 / 25 and 10 / 4.
    assert lacks(card, "1.62", "2.72", "2.50x") == ["2.72", "2.50x"]


@pytest.mark.parametrize("is_checked", [False, True])
def test_what_is_not_shown_to_be_the_same_training_is_unproven_wherever_its_speedup_stands(
    tmp_path, is_checked, collect
):
    write_measurement(tmp_path)
    unchecked = make_checked_update(3, verdict="not checked", problem="too much noise")
    edit_segment(tmp_path, "2proc", "8-16", checked_updates=[unchecked] * is_checked)
    results = collect()
    assert [cell.standing.state for cell in results.cells] == ["proven", "unproven"]
    assert results.verdict.startswith("Unproven (“Update equivalence” was not checked): 2proc trains 1.")
    assert "21 of 22 gates passed, 1 not checked" in results.verdict
    card = render_model_card(results, cell="2proc", repo_id=None, checkpoints=[])
    for text in (markdown_of(results), card):
        assert not lacks(text, "2proc is unproven: “Update equivalence”", "| Speedup | baseline | unproven |")
    tags = make_gate_tags(results.model_dump(mode="json"))
    assert tags["2proc"]["speedup"] == tags[None]["speedup.2proc"]
    assert tags["2proc"]["speedup"].startswith("unproven: Update equivalence: ")
    metrics = data_files.collect_metrics(results)
    assert (metrics["state"], metrics["speedup"]) == ("unproven", None)
    figures = collect_final_figures(results.model_dump(mode="json"))["2proc"]
    compared = [key for key in figures if any(word in key for word in ("speedup", "efficiency", "karp"))]
    assert len(compared) == 5
    assert all(key.startswith("final/unproven_") for key in compared)


@pytest.fixture(scope="module")
def passed_gates(tmp_path_factory):
    """Every gate, of three cells that were measured and passed all of them."""
    folder = tmp_path_factory.mktemp("passed")
    params = write_three(folder, num_cpus=4)
    write_measurement(folder, measured_three())
    gates = check_gates(outputs_of(folder, params))
    assert [gate.name for gate in gates] == [check.name for check in CHECKS + CHECKS_OF_BLOCKS]
    assert {gate.outcome for gate in gates} == {"passed"}, [gate for gate in gates if gate.outcome != "passed"]
    return gates


@pytest.mark.parametrize("name", [check.name for check in CHECKS + CHECKS_OF_BLOCKS])
@pytest.mark.parametrize(("verdict", "state"), [("not checked", "unproven"), ("failed", "withheld")])
def test_no_gate_is_passed_over_that_failed_or_was_not_checked_of_a_cell_or_of_its_baseline(
    passed_gates, name, verdict, state
):
    """Whichever gate it is; what is measured against an unproven baseline is unproven too."""
    cells = list(THREE_CELLS["cells"])
    for number, cell in enumerate(cells):
        gates = [_with_verdict(gate, cell, verdict) if gate.name == name else gate for gate in passed_gates]
        is_judged = any(gate.find_cell_finding(cell) for gate in gates if gate.name == name)
        found = compute_standings(gates, cells)
        concerned = (cells if number == 0 else [cell]) if is_judged else []
        assert [one.state for one in found.values()] == [state if one in concerned else "proven" for one in cells]
        assert all(found[one].gates == [name] for one in concerned)


def _with_verdict(gate, cell, verdict):
    findings = [one.model_copy(update={"outcome": verdict}) if one.cell == cell else one for one in gate.findings]
    return gate.model_copy(update={"findings": findings})


def test_three_proofs_are_owed_by_several_ranks_and_without_blocks_no_speedup_is_proven(tmp_path, read, collect):
    owed = [check.name for check in CHECKS + CHECKS_OF_BLOCKS if check.is_required_of_several_ranks]
    assert owed == ["Update equivalence", "Gradients were synchronised", "Same parameters on all ranks"]
    write_measurement(tmp_path)
    outputs = read()
    silent = Check(name="Silent", question="?", find=lambda *_: None, is_required_of_several_ranks=True)
    found = silent.judge(outputs, "2proc")
    assert found.outcome == "not checked"
    # One rank has nothing to show.
    assert silent.judge(outputs, "1proc") is None
    measured = MeasurementFile.read(tmp_path / "measurements")
    measured.model_copy(update={"blocks": []}).write(tmp_path / "measurements")
    results = collect()
    assert [cell.standing.state for cell in results.cells] == ["unproven"] * 2
    assert set(results.cells[1].standing.gates) == {
        "Timed rows are typical", "Timed blocks did the work", "Baseline is not slowed",
        "Training bears out the blocks",
    }  # fmt: skip


def test_a_gate_failed_where_one_of_its_findings_did_whatever_was_not_checked():
    found = [CellFinding(cell="c", outcome=one, compared=one) for one in ("not checked", "failed", "passed")]
    assert Gate(name="A gate", question="Does it hold?", findings=found).outcome == "failed"
