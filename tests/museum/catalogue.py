"""The museum's table: for a terminal, and row by row in docs/museum.md."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.marked_table import END, replace_rows
from tests.museum.exhibit import Exhibit
from tests.museum.exhibits import EXHIBITS
from tests.museum.museum import Outcome

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "museum.md"
BEGIN = "<!-- exhibits, written by make museum: begin -->"
BEGIN_LINES = "<!-- lines of tests/museum/exhibits: begin -->"
HEADINGS = (
    "mutant", "defect", "published with it", "caught by", "naive speedup", "what is said instead", "on",
)  # fmt: skip
_WIDTH = 240
_NOT_CAUGHT = "not caught"
_LONG_HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b")
_PROCESS = re.compile(r", pid [0-9]+ on .*")
"""Which process, on which host, in which folder: nothing of that belongs in a document."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An exhibit and what became of it."""

    exhibit: Exhibit
    outcome: Outcome

    @property
    def is_as_expected(self) -> bool:
        """Whether the named gate caught it."""
        return self.outcome.is_caught_by(self.exhibit.caught_by)

    @property
    def who_caught(self) -> str:
        """Who caught it, in words."""
        if not self.outcome.is_caught:
            return _NOT_CAUGHT
        if not self.is_as_expected:
            return f"not by “{self.exhibit.caught_by}”, but by {self.outcome.failed_gates or self.outcome.says}"
        stage, _, words = self.exhibit.caught_by.partition(": ")
        if not words:
            return f"gate “{self.exhibit.caught_by}”"
        named = "the search" if stage == "search" else f"the stage {stage}"
        who = f"the ranks ({self.outcome.error})" if self.outcome.error else named
        return f"{who} refused: “{words}”"

    @property
    def naive(self) -> str:
        """The speedup that the times alone would give."""
        return "none" if self.outcome.naive_speedup is None else f"{self.outcome.naive_speedup:.2f}x"

    @property
    def says(self) -> str:
        """The report's verdict, or the stage's refusal, shortened."""
        words = _LONG_HASH.sub(r"\1...", self.outcome.says)
        return textwrap.shorten(_PROCESS.sub("", words), _WIDTH, placeholder=" ...")


def table_of(shown: Sequence[Shown]) -> Table:
    """Return the table for a terminal."""
    table = Table(title="Museum of wrong speedups", show_lines=True)
    for heading in ("mutant", "caught by", "naive speedup", "what is said instead"):
        table.add_column(heading, overflow="fold")
    for part in shown:
        table.add_row(part.exhibit.key, part.who_caught, part.naive, part.says)
    return table


def with_shown(text: str, shown: Sequence[Shown], *, machine: Mapping[str, Any], load: str, date: str) -> str:
    """Return the document with a row for each of these; the rows of other exhibits stay what they were."""
    about = f"{machine['cpu']}, {machine['num_cpus']} CPUs; torch {machine['versions']['torch']}; {load}"
    note = f"Last on one machine ({about})."
    rows = {part.exhibit.key: [*_columns(part), date] for part in shown}
    return replace_rows(text, rows, begin=BEGIN, headings=HEADINGS, order=[part.key for part in EXHIBITS], note=note)


def keys_shown(text: str) -> set[str]:
    """Return which exhibits have a row in the document."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    return {line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()}


def with_lines(text: str) -> str:
    """Return the document with what each exhibit changes, as it stands now."""
    before, _, rest = text.partition(BEGIN_LINES)
    after = rest.partition(END)[2]
    assert after, f"the document has no {BEGIN_LINES} ... {END}"
    return "\n".join([before + BEGIN_LINES, *(_lines_of(part) for part in EXHIBITS), END + after])


def _columns(part: Shown) -> list[str]:
    caught_by = part.who_caught.replace(_NOT_CAUGHT, f"**{_NOT_CAUGHT}**")
    columns = [part.exhibit.key, part.exhibit.defect, part.exhibit.claim, caught_by, part.naive, part.says]
    return [column.replace("\n", " ") for column in columns]


def _lines_of(exhibit: Exhibit) -> str:
    lines = [f"**{exhibit.key}**", ""]
    for mutation in exhibit.mutations:
        lines += ["```diff", f"# {mutation.file}", f"- {mutation.old}", f"+ {mutation.new}", "```"]
    lines += [f"`{key}: {value}` in params.yaml" for key, value in exhibit.params]
    if exhibit.scenario != "train":
        lines += ["", _SCENARIOS[exhibit.scenario]]
    return "\n".join([*lines, ""])


_SCENARIOS = {
    "resume both": "Both cells have trained the first range without the defect; the second range follows with it.",
    "resume 2proc": "`2proc` has trained the first range without the defect; the second range follows with it.",
    "two jobs": "Nothing is changed: the stage is started twice.",
    "search": "`make search` is run with it.",
}
