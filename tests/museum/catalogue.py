"""The museum's table in docs/museum.md: each exhibit, and who has to catch it."""

from collections.abc import Iterable
from pathlib import Path

from tests.marked_table import END
from tests.museum.exhibit import Exhibit
from tests.museum.exhibits import EXHIBITS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "museum.md"
BEGIN = "<!-- exhibits, written by make museum: begin -->"
TRAINED = {part.caught_by: part.key for part in reversed(EXHIBITS) if part.scenario != "search"}
"""Who catches -> the first exhibit that has to be caught by it: `make test` trains it."""


def write_table(records: Iterable[str]) -> None:
    """Write the table into the document."""
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), records), encoding="utf-8")


def with_table(text: str, records: Iterable[str]) -> str:
    """Return the document with a row for each exhibit; `records`: keys of those that a changed record shows as well."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    rows = ["| exhibit | defect | caught by | in `make test` |", "|---|---|---|---|"]
    rows += [_make_row(part, set(records)) for part in EXHIBITS]
    return "\n".join([before + BEGIN, *rows, END + after])


def _make_row(part: Exhibit, records: set[str]) -> str:
    stage, _, words = part.caught_by.partition(": ")
    who = f"`{stage}` refuses: “{words}”" if words else part.caught_by
    ways = [("trained", part.key in TRAINED.values() or part.scenario == "search"), ("record", part.key in records)]
    return f"| {part.key} | {part.defect} | {who} | {' and '.join(name for name, is_so in ways if is_so)} |"
