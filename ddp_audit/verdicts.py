"""What was found of a cell, question by question, and what that leaves of its speedup."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ddp_audit.wording import Reason

Verdict = Literal["passed", "failed", "not checked"]
_MOST_PROBLEMS = 3


@dataclass(frozen=True)
class Finding:
    """What a question finds of a cell; `compared` names the cell."""

    verdict: Verdict
    code: str
    """Which problem it is, or why it was not checked; `passed`."""
    compared: str
    """The numbers that were compared, in plain words."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The same for machines."""
    problems: list[Reason] = field(default_factory=list)
    """One by one those that `compared` tells."""
    true_figure: str = ""
    """Where it failed and it can be told: the figure once the difference is taken out."""
    remedy: str = ""
    """What to do about it, where that is another thing than the question says."""


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


def make_finding(problems: Sequence[Reason], *, otherwise: Reason) -> Finding:
    """Return `failed` with the first few problems, or `passed` with `otherwise` if there are none."""
    if not problems:
        return Finding("passed", otherwise.code, otherwise.sentence, otherwise.numbers)
    first, shown, more = problems[0], list(problems[:_MOST_PROBLEMS]), len(problems) - _MOST_PROBLEMS
    told = "; ".join([one.sentence for one in shown] + [f"and {more} more of this kind"] * (more > 0))
    return Finding("failed", first.code, told, {**otherwise.numbers, **first.numbers}, shown)


def make_failed_finding(problem: Reason) -> Finding:
    """Return `failed` with this problem."""
    return make_finding([problem], otherwise=problem)


def make_unchecked_finding(gap: Reason) -> Finding:
    """Return `not checked`, with the reason."""
    return Finding("not checked", gap.code, gap.sentence, gap.numbers, [gap])
