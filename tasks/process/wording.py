"""Numbers as people read them: three digits that mean something, a unit, and no more."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from ddp_audit.process.wording import (
    WITHHELD,
    format_percent,
    format_plural,
    format_ratio,
    format_three_digits,
)
from ddp_audit.process.wording import format_difference as format_difference
from ddp_audit.process.wording import format_duration as format_duration
from ddp_audit.process.wording import format_seconds as format_seconds
from ddp_audit.process.wording import format_small_percent as format_small_percent
from ddp_audit.process.wording import replace_unprintable as replace_unprintable

Value = TypeVar("Value")

NOT_AVAILABLE = "n/a"
BASELINE = "baseline"
NOTHING = "–"
"""In place of an outcome where a gate says nothing about a cell."""
MARKS = {"passed": "✓ passed", "failed": "✗ failed", "not checked": "– not checked"}
"""Outcome of a gate -> how a table shows it."""
FOLLOWS = "Withheld with the speedup, from which it follows."
UNMEASURED = "Not measured: the stage measure left no speed.json for this comparison."
TRAIN_AGAIN = "Train all cells again on an idle machine: make retrain"


class Estimated(Protocol):
    """A value with its interval, as `Estimate` of tasks/records/estimate.py is one."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def holds_one(self) -> bool: ...


def replace_unit(text: str, unit: str) -> str:
    """Return a text of the report's own, which speaks of tokens, in the unit that the comparison counts."""
    if unit == "token":
        return text
    return text.replace("Token", unit.capitalize()).replace("token", unit)


def format_optional(value: Value | None, shown: Callable[[Value], str]) -> str:
    """Return the value as `shown` shows it, or that it is not available."""
    return NOT_AVAILABLE if value is None else shown(value)


def format_duration_with_interval(estimate: Estimated) -> str:
    """Return a span with its interval, such as `41.2 ms (40.9 to 41.6)`; all three in one unit."""
    return _format_span(estimate, 1, "s") if abs(estimate.value) >= 1 else _format_span(estimate, 1000, "ms")


def format_microseconds_with_interval(estimate: Estimated) -> str:
    """Return a short span with its interval, such as `41.2 µs (40.9 to 41.6)`."""
    return _format_span(estimate, 1e6, "µs")


def _format_span(estimate: Estimated, factor: float, unit: str) -> str:
    value, low, high = (format_three_digits(factor * end) for end in (estimate.value, estimate.low, estimate.high))
    return f"{value} {unit} ({low} to {high})"


def format_interval(estimate: Estimated) -> str:
    """Return the interval of a ratio, such as `1.58x to 1.66x`.

    More digits where two would not tell its ends apart, or would show 1 inside that is outside.
    """
    for decimals in (2, 3, 4):
        low, high = (f"{end:.{decimals}f}" for end in (estimate.low, estimate.high))
        if low != high and (float(low) <= 1 <= float(high)) == estimate.holds_one:
            break
    return f"{low}x to {high}x"


def format_ratio_with_interval(estimate: Estimated | None) -> str:
    """Return a ratio such as `1.62x (1.58 to 1.66)`, or that it is withheld."""
    if estimate is None:
        return WITHHELD
    return f"{format_ratio(estimate.value)} ({format_interval(estimate).replace('x', '')})"


def format_percent_with_interval(estimate: Estimated) -> str:
    """Return a share such as `81 % (79 to 83)`."""
    return f"{format_percent(estimate.value)} ({100 * estimate.low:.0f} to {100 * estimate.high:.0f})"


def format_usd(value: float) -> str:
    """Return US dollars with three significant digits, such as `$12.30`, `$0.0142` or `$1,230`."""
    return f"${value:.2f}" if 1 <= value < 100 else f"${format_three_digits(value)}"


def format_gib(value: float) -> str:
    """Return device memory such as `20.5 GiB`."""
    return f"{format_three_digits(value)} GiB"


def format_memory(gib: float) -> str:
    """Return memory such as `20.5 GiB`, or `73.2 MiB` where it is less than one."""
    return format_gib(gib) if gib >= 1 else f"{format_three_digits(gib * 1024)} MiB"


def format_parameters(number: int) -> str:
    """Return the size of a model, such as `1.1 million parameters`."""
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.1f} {word} parameters"
    return format_plural(number, "parameter")


def format_loss(value: float) -> str:
    """Return a loss with four decimals."""
    return f"{value:.4f}"


def format_count(value: int) -> str:
    """Return a number of things, thousands separated."""
    return f"{value:,}"


def join_names(names: list[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
