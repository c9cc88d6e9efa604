"""One thing that was looked at before measuring, and what came of it."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was looked at, what was found and what to do about it."""

    name: str
    """What was looked at."""
    verdict: Literal["ok", "warning", "not checked"]
    """`warning`: times would be wrong or not repeatable; `not checked`: it could not be read."""
    found: str
    """Plain words with numbers; if it was not checked, why."""
    remedy: str | None = None
    """What to change; a warning always has one."""

    @classmethod
    def ok(cls, name: str, found: str) -> Self:
        """Return a check that found nothing wrong."""
        return cls(name=name, verdict="ok", found=found)

    @classmethod
    def warning(cls, name: str, found: str, *, remedy: str) -> Self:
        """Return a check that found something to change."""
        return cls(name=name, verdict="warning", found=found, remedy=remedy)

    @classmethod
    def not_checked(cls, name: str, why: str) -> Self:
        """Return a check that could not be made."""
        return cls(name=name, verdict="not checked", found=why)

    def as_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def format_plural(number: int, noun: str) -> str:
    """Return the number with its noun: 1 rank, 2 ranks."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
