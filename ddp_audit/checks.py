"""All questions of an audit, the gravest first: is the training right, are the cells alike, is the figure clean?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddp_audit.findings import CLASSES, HYGIENE, WRONG, Question, make_unobservable
from ddp_audit.findings.cells import global_batch, launches_alike, plausible_speed, same_step
from ddp_audit.findings.gradients import clipping, exchange, gradient_scale, labels, loss_weights, own_gradient
from ddp_audit.findings.hygiene import clock, data_wait, one_file, one_model, own_device, plain_baseline
from ddp_audit.findings.ids import same_ids
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
from ddp_audit.findings.rows import OWN_SPLIT, epochs, rows_of_its_own, same_rows, shuffled
from ddp_audit.process.findings import Finding, Outcome
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
    def outcome(self) -> Outcome:
        """`failed` if one cell failed, `passed` if there are findings and all passed."""
        outcomes = {finding.outcome for finding in self.findings.values()}
        if "failed" in outcomes:
            return "failed"
        return "passed" if outcomes == {"passed"} else "not checked"


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
    same_parameters, learning, rows_of_its_own, same_ids, labels, loss_weights, own_gradient, gradient_scale,
    clipping, finite,
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
        (NO_GROUP, NO_MODE, SAME_WORK), (rows_of_its_own, same_rows, global_batch, gradient_scale, exchange, one_file)
    ),
    **dict.fromkeys((UNWRAPPED, "never_synchronised"), (exchange,)),
    NO_GRADIENT: (gradient_scale,),
    **dict.fromkeys(("ids_renamed", "ids_cut"), (same_rows,)),
    "same_rows": (shuffled, same_rows),
    OWN_SPLIT: (same_rows,),
}
"""Code of a finding -> what would only be said again of the same cell by other names."""
_GRADES = {UNSEEDED: HYGIENE, "other_mode": WRONG}
"""Codes that are less grave, or graver, than what their question is about."""
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
        answers = {cell: _find(question, audit, cell) for cell in audit.request.cells}
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
        if finding.outcome == "failed"
    ]
    return sorted((fault for fault in faults if fault.kind in kinds), key=lambda item: CLASSES.index(item.kind))


def judge_cells(answers: Sequence[Answers], speeds: Sequence[Speed], cells: Sequence[str]) -> dict[str, Standing]:
    """Return cell -> what the findings leave of its speedup; `cells` has all of them, the baseline first.

    A wrong training and unlike cells withhold it, the gravest is the reason. What could not be seen of these leaves it
    unproven, unless it is about nothing but what the script says of itself; so does a speedup without an interval, or
    with one that tells nothing.
    """
    doubts = {speed.cell: doubt for speed in speeds if (doubt := _find_doubt(speed))}
    standings = {}
    bearing = {item.name for item in QUESTIONS if item.kind != HYGIENE and item not in _OF_THE_SCRIPT_ALONE}
    for cell in cells:
        concerned = [
            answer.findings[name]
            for answer in answers
            for name in answer.findings
            if name in (cell, cells[0]) and answer.name in bearing
        ]
        unseen = [finding.compared for finding in concerned if finding.outcome == "not checked"]
        if faults := [fault for fault in list_faults(answers) if fault.cell in (cell, cells[0])]:
            standings[cell] = Standing("withheld", faults[0].sentence)
        elif unseen or cell in doubts:
            standings[cell] = Standing("unproven", [*unseen, f"{cell}: {doubts.get(cell)}"][0])
        else:
            standings[cell] = Standing("proven")
    return standings


def _find_doubt(speed: Speed) -> str:
    """Return why the launches do not tell how fast a cell is; empty where they do."""
    if speed.speedup is None:
        return ""
    if not speed.has_interval:
        return f"fewer than {FEWEST_LAUNCHES} launches of a cell give no interval"
    low, high = speed.speedup.low, speed.speedup.high
    text = (
        f"the launches differ so much that it may be slower or faster ({low:.2f} to {high:.2f} times as fast); "
        "LAUNCHES=... takes more of them"
    )
    return text * (low < 1 < high and high > _NOTHING_TOLD * low)


def _find(question: Question, audit: Audit, cell: str) -> Finding | None:
    """Return what is found of the cell in the first launch, or what is worse in a later one.

    None where the question makes no sense of it.
    """
    is_baseline, num_ranks = cell == audit.baseline, audit.request.cells[cell]
    if (
        (question in _BESIDE_BASELINE and is_baseline)
        or (question in _OF_SEVERAL_RANKS and num_ranks == 1)
        or (question in _OF_SPEED and not audit.request.compares_speed)
        or (question is plain_baseline and (not is_baseline or num_ranks > 1))
    ):
        return None
    num_launches = min(map(len, audit.launches.values())) if question in _OF_EVERY_LAUNCH else 1
    worst = _find_in_first(question, audit, cell)
    for turn in range(1, num_launches):
        later = Audit(audit.request, {name: [launches[turn]] for name, launches in audit.launches.items()})
        result = _find_in_first(question, later, cell)
        # What says nothing of the first one may have something to say of a later one.
        outcome = "passed" if worst is None else worst.outcome
        if result is not None and _WORST.index(result.outcome) < _WORST.index(outcome):
            worst = replace(result, compared=f"{result.compared} (in launch {turn + 1}, and not in those before)")
    return worst


def _find_in_first(question: Question, audit: Audit, cell: str) -> Finding | None:
    asked = [cell, *[audit.baseline] * (question in _BESIDE_BASELINE)]
    # What some ranks make and others never do is asked for all the same.
    if all(audit.first(name).num_steps for name in asked) or (
        question is learning and any(rank.steps for rank in audit.ranks(cell))
    ):
        return question.find(audit, cell)
    text = "not every rank made an optimizer step of torch.optim in the process it was started as"
    return make_unobservable(cell, "no_steps", text)
