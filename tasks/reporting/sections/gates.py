"""The checks that stand before a speedup, what each found of every cell, and what they leave of its speedup."""

from functools import partial

from tasks.process import wording
from tasks.records.gate import Gate
from tasks.reporting.blocks import Block, Facts, Fold, Table, Text, tabulate
from tasks.reporting.results import Results
from tasks.reporting.verdict import count_passed_gates

TITLE = "Gates"


def make_blocks(results: Results) -> list[Block]:
    """Return how many gates passed and which decided, and folded what each compared."""
    compared = [
        (wording.replace_unit(gate.name, results.unit), "; ".join([gate.compared, *gate.hints]))
        for gate in results.gates
    ]
    rows = [
        [cell.cell, cell.standing.state, wording.join_names(cell.standing.gates), cell.standing.reason or ""]
        for cell in results.cells
        if cell.standing.state != "proven"
    ]
    headings = ["Cell", "Standing", "Gate", "What was compared"]
    standings = Table("What decided over a speedup", headings, rows, num_prose=3)
    equivalence = tabulate(
        "Updates of each cell against those of one process",
        [
            ("Cell", lambda part: part.cell),
            ("Compared", lambda part: f"{part.compared} of {part.num_checked} updates, the widest"),
            ("Step", lambda part: str(part.step)),
            ("Difference", lambda part: wording.format_difference(part.difference)),
            ("Noise floor", lambda part: wording.format_difference(part.noise_floor)),
            ("Allowed", lambda part: wording.format_difference(part.tolerance)),
        ],
        results.equivalence,
        num_row_headings=2,
    )
    told = count_passed_gates(results)
    return [
        Text(
            f"{told[0].upper()}{told[1:]}. A gate asks whether it is the same training and a fair comparison; a cell "
            "has a speedup if none of its gates failed, and none of the baseline's."
        ),
        *[standings] * bool(standings.rows),
        *[Fold("Gates that failed", [tabulate_gates(results, only_failed=True)], is_open=True)]
        * bool(results.failed_gates),
        Fold("Every gate, cell by cell", [tabulate_gates(results)]),
        Fold("What each gate compared", [*[equivalence] * bool(equivalence.rows), Facts(compared, anchor="gate")]),
    ]


def tabulate_gates(results: Results, *, only_failed: bool = False) -> Table:
    """Return the verdict of each gate for each cell, and in the last row what they leave of its speedup."""
    names, in_unit = [cell.cell for cell in results.cells], partial(wording.replace_unit, unit=results.unit)
    rows = [
        [in_unit(gate.name), *(_mark_verdict(gate, name) for name in names), in_unit(gate.question)]
        for gate in results.gates
        if gate.verdict == "failed" or not only_failed
    ]
    states = [wording.BASELINE if cell.is_baseline else cell.standing.state for cell in results.cells]
    rows.append(["Speedup", *states, "What do the gates leave of it?"])
    headings = ["Gate", *names, "What it asks"]
    title = "Each failed gate, cell by cell" if only_failed else "Each gate, cell by cell"
    return Table(title, headings, rows, num_prose=1, words=dict.fromkeys(names, "Cell"))


def _mark_verdict(gate: Gate, cell: str) -> str:
    found = gate.find_cell_finding(cell)
    return wording.NOTHING if found is None else wording.MARKS[found.verdict]
