"""All questions of an audit, in the order in which the report answers: correct? comparable?"""

from collections.abc import Sequence
from dataclasses import asdict, replace

from tasks.auditing.findings import (
    Question,
    clipping,
    clock,
    data_wait,
    epochs,
    exchange,
    finite,
    global_batch,
    labels,
    loss_weights,
    one_file,
    own_device,
    plain_baseline,
    plausible_speed,
    rows_of_its_own,
    same_ids,
    same_parameters,
    same_rows,
    same_start,
    same_step,
    start_weights,
)
from tasks.auditing.launched import Audit
from tasks.auditing.speed import Speed
from tasks.gates.checks import Standing, compute_standings
from tasks.measuring.intervals import FEWEST_LAUNCHES
from tasks.records.gate import CellFinding, Finding, Gate

QUESTIONS: Sequence[Question] = (
    same_parameters, rows_of_its_own, same_ids, labels, loss_weights, clipping, finite, start_weights, epochs, exchange,
    plain_baseline, same_start, same_rows, global_batch, same_step, clock, data_wait, own_device, plausible_speed,
    one_file,
)  # fmt: skip
_OF_EVERY_LAUNCH: Sequence[Question] = (
    same_parameters, rows_of_its_own, exchange, plain_baseline, same_rows, global_batch, same_step,
    finite,
)  # fmt: skip
"""What a step does, and is timed doing in every launch; all else is asked of the first one.

Files that a script finds there in a later launch are those of its own first one.
"""
_OF_THE_SCRIPT_ALONE = (epochs.NAME, clock.NAME)
"""What these ask bears on what the script says; the speedup is of steps, by the audit's own clock."""
_NOTHING_TOLD = 1.1
"""How many times its lower end an interval's upper one is, at least, if it tells nothing where it holds 1."""
_WORST = ("failed", "not checked", "passed")


def ask_all(audit: Audit) -> list[Gate]:
    """Return what was found of every cell, question by question."""
    gates = []
    for question in QUESTIONS:
        ask = _find_in_every_launch if question in _OF_EVERY_LAUNCH else _find
        found = {cell: ask(question, audit, cell) for cell in audit.request.cells}
        findings = [CellFinding(cell=cell, **asdict(one)) for cell, one in found.items() if one is not None]
        gates.append(Gate(name=question.NAME, question=question.QUESTION, findings=findings))
    return gates


def judge_cells(gates: Sequence[Gate], speeds: Sequence[Speed], cells: Sequence[str]) -> dict[str, Standing]:
    """Return cell -> what the findings leave of its speedup; `cells` has all of them, the baseline first.

    Whatever is found wrong withholds it. What could not be seen leaves it unproven, unless it is about nothing but what
    the script says of itself; so does a speedup without an interval, or with one that tells nothing.
    """
    bearing = [
        gate.model_copy(update={"findings": [one for one in gate.findings if one.verdict == "failed"]})
        if gate.name in _OF_THE_SCRIPT_ALONE
        else gate
        for gate in gates
    ]
    standings = compute_standings(bearing, cells)
    for speed in speeds:
        doubt = _find_doubt(speed)
        if doubt and standings[speed.cell].state == "proven":
            standings[speed.cell] = Standing(state="unproven", reason=f"{speed.cell}: {doubt}")
    return standings


def _find_doubt(speed: Speed) -> str:
    """Return why the launches do not tell how fast a cell is; empty where they do."""
    if speed.speedup is None:
        return ""
    if not speed.has_interval:
        return f"fewer than {FEWEST_LAUNCHES} launches of a cell give no interval"
    low, high = speed.speedup.low, speed.speedup.high
    if low < 1 < high and high > _NOTHING_TOLD * low:
        return (
            f"the launches differ so much that it may be slower or faster ({low:.2f} to {high:.2f} times as fast); "
            "LAUNCHES=... takes more of them"
        )
    return ""


def _find(question: Question, audit: Audit, cell: str) -> Finding | None:
    return question.find(audit, cell)


def _find_in_every_launch(question: Question, audit: Audit, cell: str) -> Finding | None:
    """Return what is found of the cell in the first launch, or what is worse in a later one."""
    worst = question.find(audit, cell)
    for turn in range(1, min(map(len, audit.launches.values()))):
        later = Audit(audit.request, {name: [launches[turn]] for name, launches in audit.launches.items()})
        found = question.find(later, cell)
        # What says nothing of the first one may have something to say of a later one.
        verdict = "passed" if worst is None else worst.verdict
        if found is None or _WORST.index(found.verdict) >= _WORST.index(verdict):
            continue
        worst = replace(found, compared=f"{found.compared} (in launch {turn + 1}, and not in those before)")
    return worst


def find_remedy(name: str) -> str:
    """Return what mends the finding of that name."""
    return next(question.REMEDY for question in QUESTIONS if name == question.NAME)
