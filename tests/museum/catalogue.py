"""The museum's table in docs/museum.md: each exhibit, and who has to catch it."""

from collections.abc import Iterable
from pathlib import Path

from tasks.gates.equivalence import compute_probability
from tasks.params import VerifyParams
from tests.marked_table import END
from tests.museum.exhibit import Exhibit
from tests.museum.exhibits import EXHIBITS
from tests.museum.museum import ABOUT_SECONDS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "museum.md"
BEGIN = "<!-- exhibits, written by make museum: begin -->"
TRAINED = {part.caught_by: part.key for part in reversed(EXHIBITS) if part.scenario != "search"}
"""Who catches -> the first exhibit that it has to catch: `make test` trains it, unless the gate is about seconds."""


def write_table(records: Iterable[str]) -> None:
    """Write the table into the document."""
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), records), encoding="utf-8")


def with_table(text: str, records: Iterable[str]) -> str:
    """Return the document with a row for each exhibit; `records`: keys of those that a changed record shows as well."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    rows = [
        "| wrong updates | one is checked with |",
        "|---|---|",
        *(f"| {which} | {100 * chance:.0f} % |" for which, chance in _list_chances()),
        "",
    ]
    rows += ["| exhibit | caught by | begun later | in `make test` |", "|---|---|---|---|"]
    rows += [_make_row(part, set(records)) for part in EXHIBITS]
    return "\n".join([before + BEGIN, *rows, END + after])


def _list_chances() -> Iterable[tuple[str, float]]:
    """Yield which updates are wrong, and how likely one of them is checked; the first and the last always are."""
    drawn = VerifyParams().updates
    yield "all from some step on", 1.0
    for part, words in ((1 / 4, "a quarter"), (1 / 10, "a tenth")):
        yield f"{words} of the steps", compute_probability(drawn, part)
        yield f"{words}, neither first nor last step", compute_probability(drawn - 2, part)


def _make_row(part: Exhibit, records: set[str]) -> str:
    is_trained = part.key in TRAINED.values() and part.caught_by not in ABOUT_SECONDS
    ways = [("trained", is_trained or part.scenario == "search"), ("record", part.key in records)]
    who, late = _tell(part.caught_by), _tell(part.late_caught_by) if part.begins_anywhere else ""
    late = "same" if late == who else late
    return f"| {part.key} | {who} | {late} | {', '.join(name for name, is_so in ways if is_so)} |"


def _tell(caught_by: str) -> str:
    stage, _, words = caught_by.partition(": ")
    return f"`{stage}` refuses: “{words}”" if words else caught_by
