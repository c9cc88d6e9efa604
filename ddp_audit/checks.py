"""All questions of an audit, the gravest first: is the training right, are the cells alike, is the figure clean?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddp_audit.findings import CLASSES, HYGIENE, Question, find_nothing_seen
from ddp_audit.findings.cells import global_batch, launches_alike, plausible_speed, same_step
from ddp_audit.findings.gradients import clipping, exchange, gradient_scale, labels, loss_weights
from ddp_audit.findings.hygiene import clock, data_wait, one_file, one_model, own_device, plain_baseline
from ddp_audit.findings.parameters import (
    NO_GRADIENT,
    NO_GROUP,
    NO_MODE,
    SAME_WORK,
    UNSEEDED,
    UNWRAPPED,
    finite,
    learning,
    same_parameters,
    same_start,
    start_weights,
)
from ddp_audit.findings.rows import epochs, rows_of_its_own, same_ids, same_rows, shuffled
from ddp_audit.process.findings import Finding, Verdict
from ddp_audit.process.wording import explain
from ddp_audit.records import Audit
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
        verdicts = {finding.verdict for finding in self.findings.values()}
        if "failed" in verdicts:
            return "failed"
        return "passed" if verdicts == {"passed"} else "not checked"


@dataclass(frozen=True)
class Standing:
    """What the findings leave of a cell's speedup."""

    state: Literal["proven", "unproven", "withheld"]
    reason: str = ""
    """Why, by the gravest finding; empty if proven."""


@dataclass(frozen=True)
class Result:
    """All that an audit says."""

    audit: Audit
    answers: Sequence[Answers]
    speeds: Sequence[Speed]
    standings: dict[str, Standing]
    """Cell -> what the findings leave of its speedup."""


QUESTIONS: Sequence[Question] = (
    same_parameters, learning, rows_of_its_own, same_ids, labels, loss_weights, gradient_scale, clipping, finite,
    start_weights, epochs, launches_alike, same_start, same_rows, global_batch, same_step, plausible_speed,
    plain_baseline, exchange, shuffled, one_model, clock, data_wait, own_device, one_file,
)  # fmt: skip
_OF_EVERY_LAUNCH = (
    same_parameters, learning, rows_of_its_own, gradient_scale, finite, same_rows, global_batch, same_step,
    plain_baseline, exchange,
)  # fmt: skip
"""What a step does, and is timed doing in every launch; all else is asked of the first one."""
_BESIDE_BASELINE = (gradient_scale, same_start, same_rows, global_batch, same_step)
_OF_SEVERAL_RANKS = (same_parameters, rows_of_its_own, clipping, exchange, one_model)
_OF_SPEED = (data_wait, plausible_speed)
"""Asked where launches are compared in turns: a few steps on a busy machine tell nothing of it."""
_OF_THE_SCRIPT_ALONE = (epochs,)
"""What this asks bears on what the script says; the speedup is of steps, by the audit's own clock."""
_FOLLOWS: dict[str, Sequence[Question]] = {
    **dict.fromkeys(
        (NO_GROUP, NO_MODE, SAME_WORK), (rows_of_its_own, same_rows, global_batch, gradient_scale, exchange)
    ),
    **dict.fromkeys((UNWRAPPED, "never_synchronised"), (exchange,)),
    NO_GRADIENT: (gradient_scale,),
    **dict.fromkeys(same_ids.says, (same_rows,)),
    "same_rows": (shuffled,),
}
"""Code of a finding -> what would only be said again of the same cell by other names."""
_GRADES = {UNSEEDED: HYGIENE}
"""Codes that are less grave than what their question is about."""
_NOTHING_TOLD = 1.1
"""How many times its lower end an interval's upper one is, at least, if it tells nothing where it holds 1."""
_WORST = ("failed", "not checked", "passed")


@dataclass(frozen=True)
class Fault:
    """A failed finding, as the report names it."""

    question: Question
    cell: str
    finding: Finding

    @property
    def kind(self) -> str:
        """Which of CLASSES it is of."""
        return _GRADES.get(self.finding.code, self.question.kind)

    @property
    def sentence(self) -> str:
        """What is wrong, in one sentence."""
        template = self.question.says.get(self.finding.code, "{compared}")
        numbers = {**self.finding.numbers, "cell": self.cell, "compared": self.finding.compared}
        return explain(self.finding.code, template, **numbers).sentence


def ask_all(audit: Audit) -> list[Answers]:
    """Return what was found of every cell, question by question, without what only follows from a graver finding."""
    findings: dict[str, dict[str, Finding]] = {}
    for question in QUESTIONS:
        ask = _find_in_every_launch if question in _OF_EVERY_LAUNCH else _find
        answers = {cell: ask(question, audit, cell) for cell in audit.request.cells}
        findings[question.name] = {cell: answer for cell, answer in answers.items() if answer is not None}
    causes = [(cell, item.code) for of_cells in findings.values() for cell, item in of_cells.items()]
    for cell, code in causes:
        for question in _FOLLOWS.get(code, ()):
            findings[question.name].pop(cell, None)
    return [Answers(question.name, question.asks, findings[question.name]) for question in QUESTIONS]


def list_faults(answers: Sequence[Answers], kinds: Sequence[str] = CLASSES[:2]) -> list[Fault]:
    """Return the failed findings of these classes, the gravest first."""
    questions = {question.name: question for question in QUESTIONS}
    faults = [
        Fault(questions[gate.name], cell, finding)
        for gate in answers
        for cell, finding in gate.findings.items()
        if finding.verdict == "failed"
    ]
    return sorted((fault for fault in faults if fault.kind in kinds), key=lambda item: CLASSES.index(item.kind))


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
    if faults := [fault for fault in list_faults(answers) if fault.cell in concerned]:
        return Standing("withheld", faults[0].sentence)
    bearing = {
        question.name for question in QUESTIONS if question.kind != HYGIENE and question not in _OF_THE_SCRIPT_ALONE
    }
    for gate in answers:
        for cell, finding in gate.findings.items():
            if gate.name in bearing and cell in concerned and finding.verdict == "not checked":
                return Standing("unproven", finding.compared)
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
    if question in _OF_SPEED and not audit.request.compares_speed:
        return None
    if question is plain_baseline and (not is_baseline or num_ranks > 1):
        return None
    if question is learning and len({len(rank.steps) > 0 for rank in audit.ranks(cell)}) > 1:
        # What some ranks make and others never do.
        return question.find(audit, cell)
    nothing = [find_nothing_seen(audit, name) for name in (cell, *[audit.baseline] * is_beside)]
    return next(filter(None, nothing), None) or question.find(audit, cell)


def _find_in_every_launch(question: Question, audit: Audit, cell: str) -> Finding | None:
    """Return what is found of the cell in the first launch, or what is worse in a later one."""
    worst = _find(question, audit, cell)
    for turn in range(1, min(map(len, audit.launches.values()))):
        later = Audit(audit.request, {name: [launches[turn]] for name, launches in audit.launches.items()})
        result = _find(question, later, cell)
        # What says nothing of the first one may have something to say of a later one.
        verdict = "passed" if worst is None else worst.verdict
        if result is None or _WORST.index(result.verdict) >= _WORST.index(verdict):
            continue
        worst = replace(result, compared=f"{result.compared} (in launch {turn + 1}, and not in those before)")
    return worst
