"""What a report is made of: sections of blocks, which say what they hold and leave to a renderer how that looks.

Every text in them is plain: none is read as markup, so that a name out of the data never becomes any.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from tasks.process import wording

Row = TypeVar("Row")

_LONG_NAME = 20


@dataclass(frozen=True)
class Text:
    """A paragraph; of the plain ones only `role` is empty."""

    text: str
    role: Literal["", "lead", "label", "answer", "unresolved", "refusal", "notice"] = ""


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Items:
    """Sentences that each stand for themselves."""

    texts: Sequence[str]


@dataclass(frozen=True)
class KeyFigures:
    """The few figures that are seen first: (value, what it is, remark)."""

    figures: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Answers:
    """What a reader asks first: (question, answer, anchor of the section that says more)."""

    answers: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Facts:
    """What is known: (name, value); `anchor`: with the name behind it, where a link finds one of them."""

    facts: Sequence[tuple[str, str]]
    anchor: str = ""


@dataclass(frozen=True)
class Links:
    """Files beside the report: (name, where from the report's folder, what it is)."""

    links: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Terms:
    """Word -> what it means; every table's heading that is such a word leads here."""

    meanings: dict[str, str]


@dataclass(frozen=True)
class Table:
    """A table whose headings are words of the glossary.

    The first `num_row_headings` columns name the row, the last `num_prose` are sentences, those between are figures.
    `words`: heading -> the word that explains it, where that is another.
    """

    title: str
    headings: list[str]
    rows: list[list[str]]
    num_row_headings: int = 1
    num_prose: int = 0
    words: dict[str, str] = field(default_factory=dict)

    @property
    def is_wordy(self) -> bool:
        """Whether its lines have to be broken."""
        names = (name for row in self.rows for name in row[: self.num_row_headings])
        return self.num_prose > 0 or any(len(name) > _LONG_NAME for name in names)

    def replace_unit(self, unit: str) -> "Table":
        """Return it with headings that speak of what the comparison counts."""
        return replace(self, headings=[wording.replace_unit(heading, unit) for heading in self.headings])


def tabulate(
    title: str,
    columns: Iterable[tuple[str, Callable[[Row], str]]],
    rows: Iterable[Row],
    *,
    num_row_headings: int = 1,
    num_prose: int = 0,
) -> Table:
    """Return a table with a column per (heading, what it shows of a row)."""
    columns = list(columns)
    shown = [[show(row) for _, show in columns] for row in rows]
    return Table(title, [heading for heading, _ in columns], shown, num_row_headings, num_prose)


@dataclass(frozen=True)
class ShownChart:
    """A drawing of charts/, how to read it, and in words the figures that it shows."""

    name: str
    title: str
    caption: str
    figures: str = ""

    @property
    def told(self) -> str:
        """All of it in words, for who does not see it."""
        return f"{self.caption} {self.figures}".strip()


@dataclass(frozen=True)
class Charts:
    """Where the charts stand whose SECTION is `slot`; a section names the place, make_document puts them there."""

    slot: str
    charts: Sequence[ShownChart] = ()


@dataclass(frozen=True)
class Code:
    """Lines to be copied as they are; `label` says what for."""

    text: str
    language: str
    label: str


@dataclass(frozen=True)
class Quotes:
    """Texts of others beside each other, the first one what the others go on from: (whose, text)."""

    title: str
    texts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Fold:
    """What only some readers want: below its title, shut on a page until it is opened."""

    title: str
    blocks: Sequence["Block"]
    is_open: bool = False


Block = Text | Heading | Items | KeyFigures | Answers | Facts | Links | Terms | Table | Charts | Code | Quotes | Fold


@dataclass(frozen=True)
class PageSection:
    """A heading, where a link finds it, and what stands below; a folded one is shut on a page until it is opened."""

    anchor: str
    title: str
    blocks: Sequence[Block]
    is_folded: bool = False


def list_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield every block, and behind each fold what it holds."""
    for block in blocks:
        yield block
        if isinstance(block, Fold):
            yield from list_blocks(block.blocks)


@dataclass(frozen=True)
class Document:
    """What a renderer is given."""

    title: str
    tab: str
    """What a window's tab says after the title."""
    summary: str
    """What a link to it is shown with."""
    lead: Sequence[Block]
    """Between the title and the first section."""
    sections: Sequence[PageSection]
    end: Sequence[Block] = ()
    """After the last section."""
