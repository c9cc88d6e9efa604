"""Numbers as people read them, and sentences made of them."""

import math
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Number = int | float | None
Numbers = Mapping[str, Number | str | list[Number | str]]

WITHHELD = "withheld"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Reason:
    """What a check says, for machines and for people."""

    code: str
    """Which problem it is, in snake_case; `passed` where there is none. It stays when the sentence is reworded."""
    numbers: Numbers
    """All that the sentence prints, and what else was compared; null for a number that is not finite."""
    sentence: str
    """The same in plain words."""

    def extend(self, template: str, /, **numbers: Any) -> "Reason":
        """Return it in a longer sentence: `{sentence}` stands for its own, the rest is as in `explain`."""
        known = {**self.numbers, **_to_numbers(numbers)}
        return Reason(self.code, known, _SENTENCES.format(template, **{**known, **numbers, "sentence": self.sentence}))


def explain(code: str, template: str, /, **numbers: Any) -> Reason:
    """Return the reason whose sentence is `template` filled with the numbers.

    Beside Python's own formats it takes the names of this file's: `{share:percent}`, `{seconds:duration}`; and
    `{num_steps:plural step}`. A list is printed with commas, each of its members in the format.
    """
    return Reason(code, _to_numbers(numbers), _SENTENCES.format(template, **numbers))


def format_three_digits(value: float) -> str:
    """Return `value` with three significant digits, thousands separated: `0.00381`, `6.40`, `54.0`, `12,300`."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -5 < magnitude < 15:
        return f"{value:.2e}"
    decimals = 2 - magnitude
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def format_seconds(value: float) -> str:
    """Return a span such as `41.2 s`."""
    return f"{format_three_digits(value)} s"


def format_duration(value: float) -> str:
    """Return a span such as `41.2 s`, or `41.2 ms` below a second."""
    return format_seconds(value) if abs(value) >= 1 else f"{format_three_digits(1000 * value)} ms"


def format_ratio(value: float | None) -> str:
    """Return a speedup such as `1.31x`, or that it is withheld."""
    return WITHHELD if value is None else f"{value:.2f}x"


def format_percent(value: float | None) -> str:
    """Return a share such as `65 %`, or that it is withheld."""
    return WITHHELD if value is None else f"{value:.0%}".replace("%", " %")


def format_small_percent(value: float) -> str:
    """Return a share with one decimal, such as `0.4 %`."""
    return f"{value:.1%}".replace("%", " %")


def format_difference(value: float) -> str:
    """Return a small relative difference such as `3.1e-06`."""
    return "0" if value == 0 else f"{value:.1e}"


def format_plural(number: int, noun: str) -> str:
    """Return `1 step`, `2 steps`, `2 launches`, `2 micro-batches`."""
    ending = "es" if noun.endswith(("ch", "ss")) and noun != "epoch" else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def replace_unprintable(text: str) -> str:
    """Return the text without what no page can show: lone surrogates and control characters."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text.encode("utf-8", "replace").decode("utf-8"))


class _Sentences(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, list):
            return ", ".join(self.format_field(item, format_spec) for item in value)
        name, _, noun = format_spec.partition(" ")
        shown = globals().get(f"format_{name}")
        if shown is None:
            return format(value, format_spec)
        return str(shown(value, noun) if noun else shown(value))


_SENTENCES = _Sentences()


def _to_numbers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _to_number(value) for name, value in numbers.items()}


def _to_number(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_to_number(item) for item in value]
    # Numbers of numpy are none of JSON's.
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (int, float, str)) else str(value)
