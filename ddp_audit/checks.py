"""All questions of an audit, the gravest first: is the training right, are the cells alike, is the figure clean?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddp_audit.evidence import find_nothing_seen
from ddp_audit.findings import (
    CLASSES,
    Question,
    clipping,
    clock,
    data_wait,
    epochs,
    exchange,
    finite,
    global_batch,
    gradient_scale,
    labels,
    launches_alike,
    learning,
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
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, Verdict
from ddp_audit.process.wording import explain
from ddp_audit.speed import FEWEST_LAUNCHES, Speed


@dataclass(frozen=True)
class Answers:
    """One question, and what it found of every cell that it makes sense of."""

    name: str
    """What holds if it passed."""
    question: str
    """What it asks, in plain words."""
    findings: dict[str, Finding]
    """Cell -> what was found of it."""

    @property
    def verdict(self) -> Verdict:
        """`failed` if one cell failed, `passed` if there are findings and all passed."""
        verdicts = {found.verdict for found in self.findings.values()}
        if "failed" in verdicts:
            return "failed"
        return "passed" if verdicts == {"passed"} else "not checked"


@dataclass(frozen=True)
class Standing:
    """What the findings leave of a cell's speedup."""

    state: Literal["proven", "unproven", "withheld"]
    reason: str = ""
    """Why, by the gravest finding; empty if proven."""


QUESTIONS: Sequence[Question] = (
    same_parameters, learning, rows_of_its_own, same_ids, labels, loss_weights, gradient_scale, clipping, finite,
    start_weights, epochs, launches_alike, same_start, same_rows, global_batch, same_step, plausible_speed,
    plain_baseline, exchange, clock, data_wait, own_device, one_file,
)  # fmt: skip
_OF_EVERY_LAUNCH: Sequence[Question] = (
    same_parameters, learning, rows_of_its_own, gradient_scale, finite, same_rows, global_batch, same_step,
    plain_baseline, exchange,
)  # fmt: skip
"""What a step does, and is timed doing in every launch; all else is asked of the first one."""
_BESIDE_BASELINE: Sequence[Question] = (gradient_scale, same_start, same_rows, global_batch, same_step)
_OF_SEVERAL_RANKS: Sequence[Question] = (same_parameters, rows_of_its_own, clipping, exchange)
_OF_THE_SCRIPT_ALONE = (epochs.NAME,)
"""What this asks bears on what the script says; the speedup is of steps, by the audit's own clock."""
_FOLLOWS = {
    **dict.fromkeys(
        (same_parameters.NO_GROUP, same_parameters.SAME_WORK),
        (rows_of_its_own.NAME, same_rows.NAME, global_batch.NAME, gradient_scale.NAME, exchange.NAME),
    ),
    same_parameters.UNWRAPPED: (exchange.NAME,),
    learning.NO_GRADIENT: (gradient_scale.NAME,),
    **dict.fromkeys(same_ids.SAYS, (same_rows.NAME,)),
}
"""Code of a finding -> what would only be said again of the same cell by other names."""
_HYGIENE = {same_start.UNSEEDED}
"""Codes that are less grave than what their question is about."""
_NOTHING_TOLD = 1.1
"""How many times its lower end an interval's upper one is, at least, if it tells nothing where it holds 1."""
_WORST = ("failed", "not checked", "passed")


@dataclass(frozen=True)
class Fault:
    """A failed finding, as the report names it."""

    question: Question
    cell: str
    found: Finding

    @property
    def kind(self) -> str:
        """Which of CLASSES it is of."""
        return "hygiene" if self.found.code in _HYGIENE else self.question.CLASS

    @property
    def sentence(self) -> str:
        """What is wrong, in one sentence."""
        template = self.question.SAYS.get(self.found.code, "{compared}")
        numbers = {**self.found.numbers, "cell": self.cell, "compared": self.found.compared}
        return explain(self.found.code, template, **numbers).sentence


def ask_all(audit: Audit) -> list[Answers]:
    """Return what was found of every cell, question by question, without what only follows from a graver finding."""
    found: dict[str, dict[str, Finding]] = {}
    for question in QUESTIONS:
        ask = _find_in_every_launch if question in _OF_EVERY_LAUNCH else _find
        answers = {cell: ask(question, audit, cell) for cell in audit.request.cells}
        found[question.NAME] = {cell: one for cell, one in answers.items() if one is not None}
    causes = [(cell, one.code) for of_cells in found.values() for cell, one in of_cells.items()]
    for cell, name in ((cell, name) for cell, code in causes for name in _FOLLOWS.get(code, ())):
        found[name].pop(cell, None)
    return [Answers(question.NAME, question.QUESTION, found[question.NAME]) for question in QUESTIONS]


def list_faults(answers: Sequence[Answers], kinds: Sequence[str] = CLASSES[:2]) -> list[Fault]:
    """Return the failed findings of these classes, the gravest first."""
    questions = {question.NAME: question for question in QUESTIONS}
    faults = [
        Fault(questions[gate.name], cell, one)
        for gate in answers
        for cell, one in gate.findings.items()
        if one.verdict == "failed"
    ]
    return sorted((one for one in faults if one.kind in kinds), key=lambda one: CLASSES.index(one.kind))


def judge_cells(answers: Sequence[Answers], speeds: Sequence[Speed], cells: Sequence[str]) -> dict[str, Standing]:
    """Return cell -> what the findings leave of its speedup; `cells` has all of them, the baseline first.

    A wrong training and unlike cells withhold it, the gravest is the reason. What could not be seen of these leaves it
    unproven, unless it is about nothing but what the script says of itself; so does a speedup without an interval, or
    with one that tells nothing.
    """
    standings = {cell: _judge(answers, (cell, cells[0])) for cell in cells}
    for speed in speeds:
        doubt = _find_doubt(speed)
        if doubt and standings[speed.cell].state == "proven":
            standings[speed.cell] = Standing("unproven", f"{speed.cell}: {doubt}")
    return standings


def _judge(answers: Sequence[Answers], concerned: Sequence[str]) -> Standing:
    if faults := [one for one in list_faults(answers) if one.cell in concerned]:
        return Standing("withheld", faults[0].sentence)
    bearing = {one.NAME for one in QUESTIONS if one.CLASS != "hygiene" and one.NAME not in _OF_THE_SCRIPT_ALONE}
    for gate in answers:
        for cell, one in gate.findings.items():
            if gate.name in bearing and cell in concerned and one.verdict == "not checked":
                return Standing("unproven", one.compared)
    return Standing("proven")


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
    """Return what is found of the cell; None where the question makes no sense of it."""
    is_beside, is_baseline, num_ranks = question in _BESIDE_BASELINE, cell == audit.baseline, audit.request.cells[cell]
    if (is_beside and is_baseline) or (num_ranks == 1 and question in _OF_SEVERAL_RANKS):
        return None
    if question is plain_baseline and (not is_baseline or num_ranks > 1):
        return None
    nothing = [find_nothing_seen(audit, name) for name in (cell, *[audit.baseline] * is_beside)]
    return next(filter(None, nothing), None) or question.find(audit, cell)


def _find_in_every_launch(question: Question, audit: Audit, cell: str) -> Finding | None:
    """Return what is found of the cell in the first launch, or what is worse in a later one."""
    worst = _find(question, audit, cell)
    for turn in range(1, min(map(len, audit.launches.values()))):
        later = Audit(audit.request, {name: [launches[turn]] for name, launches in audit.launches.items()})
        found = _find(question, later, cell)
        # What says nothing of the first one may have something to say of a later one.
        verdict = "passed" if worst is None else worst.verdict
        if found is None or _WORST.index(found.verdict) >= _WORST.index(verdict):
            continue
        worst = replace(found, compared=f"{found.compared} (in launch {turn + 1}, and not in those before)")
    return worst
