"""Why something was found right or wrong: a code that stays, the numbers compared, and a sentence made of them."""

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.process import wording

Number = int | float | None
Numbers = Mapping[str, Number | str | list[Number | str]]


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

    Beside Python's own formats it takes the names of wording's: `{share:percent}`, `{seconds:duration}`; and
    `{num_steps:plural step}`. A list is printed with commas, each of its members in the format.
    """
    return Reason(code, _to_numbers(numbers), _SENTENCES.format(template, **numbers))


class _Sentences(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, list):
            return ", ".join(self.format_field(one, format_spec) for one in value)
        name, _, noun = format_spec.partition(" ")
        shown = getattr(wording, f"format_{name}", None)
        if shown is None:
            return format(value, format_spec)
        return str(shown(value, noun) if noun else shown(value))


_SENTENCES = _Sentences()


def _to_numbers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _to_number(value) for name, value in numbers.items()}


def _to_number(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_to_number(one) for one in value]
    # Numbers of numpy are none of JSON's.
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, int | float | str) else str(value)
