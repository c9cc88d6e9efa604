"""A gate: one automatic check that has to pass before a speedup is printed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Verdict = Literal["passed", "failed", "not checked"]
Number = int | float | None
Numbers = Mapping[str, Number | list[Number]]

_MOST_PROBLEMS = 3


class Gate(BaseModel):
    """One check with its verdict and the numbers it compared; what report, tracker and model card read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[A-Za-z0-9 -]+$")
    """What holds if it passed; letters, digits, spaces and dashes, as a tracker's tags allow."""
    question: str
    """What it asks, in plain words."""
    verdict: Verdict
    """`not checked` is no pass: `compared` then says why nothing could be compared."""
    compared: str
    """The numbers that were compared, in plain words."""
    numbers: dict[str, Number | list[Number]] = {}
    """The same for machines; a list has one number per cell, in the order of `cells`, null where there is none."""
    true_figure: str | None = None
    """Failed gates, where it can be told: the figure once the difference is taken out."""

    @field_validator("numbers")
    @classmethod
    def _json_has_no_infinity(cls, numbers: dict[str, Number | list[Number]]) -> dict[str, Number | list[Number]]:
        return {
            name: [_finite(one) for one in value] if isinstance(value, list) else _finite(value)
            for name, value in numbers.items()
        }


def _finite(value: Number) -> Number:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    verdict: Verdict
    compared: str
    numbers: Numbers = field(default_factory=dict)
    true_figure: str | None = None


def finding(problems: list[str], *, otherwise: str, numbers: Numbers) -> Finding:
    """Return `failed` with the first few problems, or `passed` with `otherwise` if there are none."""
    if not problems:
        return Finding("passed", otherwise, numbers)
    shown = "; ".join(problems[:_MOST_PROBLEMS])
    more = len(problems) - _MOST_PROBLEMS
    return Finding("failed", f"{shown}; and {more} more of this kind" if more > 0 else shown, numbers)


def not_checked(reason: str) -> Finding:
    """Return `not checked`, with the reason."""
    return Finding("not checked", reason)
