"""What every column and word of the report means, in one place."""

import tomllib
from functools import partial
from pathlib import Path

from tasks.process import wording
from tasks.reporting.blocks import Block, Terms
from tasks.reporting.results import Results

TITLE = "Glossary"

_WORDS = Path(__file__).with_suffix(".toml")
_OF_CLASSES = (
    "Accuracy", "Top-5 accuracy", "Best accuracy", "Best epoch", "Last accuracy", "Best checkpoint",
)  # fmt: skip
_OF_TEXTS = ("Perplexity",)
_OF_RESPONSES: tuple[str, ...] = ("Token accuracy",)


def make_blocks(results: Results) -> list[Block]:
    """Return the words of a report on classes, or of one on texts, in what the comparison counts."""
    foreign: tuple[str, ...] = _OF_TEXTS if results.quality.is_classified else _OF_CLASSES
    foreign += () if results.quality.has_responses else _OF_RESPONSES
    replace = partial(wording.replace_unit, unit=results.unit)
    known = tomllib.loads(_WORDS.read_text(encoding="utf-8"))
    return [Terms({replace(word): replace(meaning) for word, meaning in known.items() if word not in foreign})]
