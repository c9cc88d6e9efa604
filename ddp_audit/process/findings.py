"""What a check found of a cell: a gate of a comparison, or a question of the audit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ddp_audit.process.wording import Numbers, Reason, explain

Outcome = Literal["passed", "failed", "not checked"]
_MOST_PROBLEMS = 3


@dataclass(frozen=True)
class Finding:
    """What a check found of a cell; `compared` names the cell."""

    outcome: Outcome
    code: str
    """Which problem it is, or why it was not checked; `passed`."""
    compared: str
    """The numbers that were compared, in plain words."""
    numbers: Numbers = field(default_factory=dict)
    """The same for machines."""
    problems: list[Reason] = field(default_factory=list)
    """One by one those that `compared` tells."""
    true_figure: str | None = None
    """Where it failed and it can be told: the figure once the difference is taken out."""
    remedy: str | None = None
    """What to do about it, where that is another thing than the question says."""


def make_finding(problems: Sequence[Reason], passed: Reason | str, /, **numbers: Any) -> Finding:
    """Return `failed` with the first few problems, or `passed` if there are none.

    `passed`: what is said then, or the template of it, which is filled with the numbers as in `explain`.
    """
    otherwise = explain("passed", passed, **numbers) if isinstance(passed, str) else passed
    if not problems:
        return Finding("passed", otherwise.code, otherwise.sentence, otherwise.numbers)
    return _make("failed", problems, beside=otherwise.numbers)


def make_failed_finding(*problems: Reason) -> Finding:
    """Return `failed` with the first few problems."""
    return _make("failed", problems, beside={})


def make_unchecked_finding(*gaps: Reason) -> Finding:
    """Return `not checked`, with the reasons."""
    return _make("not checked", gaps, beside={})


def _make(outcome: Outcome, problems: Sequence[Reason], *, beside: Numbers) -> Finding:
    first, shown, more = problems[0], list(problems[:_MOST_PROBLEMS]), len(problems) - _MOST_PROBLEMS
    text = "; ".join([item.sentence for item in shown] + [f"and {more} more of this kind"] * (more > 0))
    return Finding(outcome, first.code, text, {**beside, **first.numbers}, shown)
