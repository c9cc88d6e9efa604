"""What happens to a row that is no good text: one place that decides it, whatever the row came from (docs/data.md)."""

import itertools
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.process import wording
from tasks.process.failure import DataError
from tasks.records.facts import TokenisedFacts

_BUFFER_BYTES = 2**20
MAX_CHARACTERS = 1_000_000
"""Characters of a row that are kept; far more tokens than any sample has."""
MAX_QUARANTINED_SHARE = 0.05
"""Of the rows read; with more of them it is the wrong column or a damaged file."""
MAX_UNLABELLED_SHARE = 0.25
"""The same of rows without a class, which nothing is wrong with."""
MAX_LABEL_CHARACTERS = 200
_INEXACT = 2**53
"""From here on one float stands for several whole numbers."""
NO_CLASS = (-1, -100)
"""What data sets and libraries write for none; as text it is a class of that name."""
CUT, UNLABELLED = "cut", "unlabelled"
QUARANTINED = {
    "null": "null",
    "blank": "empty or white space",
    "nul": "text with a NUL character",
    "surrogate": "text with a lone surrogate, which UTF-8 cannot hold",
    UNLABELLED: "without a class (or -1, which stands for none unless it is text)",
    "long_prompt": "a prompt that leaves no token of the response within train.seq_len",
}
"""Fault of a row that is left out of every slice -> in words."""
QUARANTINED_IMAGES = {
    "unreadable": "no image that can be decoded to its end",
    "too_large": "more pixels or bytes than are decoded",
    "depth": "not 8 bits a channel",
}
"""The same for images."""
_IN_WORDS = QUARANTINED | QUARANTINED_IMAGES


class Row(NamedTuple):
    """A row as it is kept: it has a place in the data set even if it is left out."""

    text: str
    """Empty where the row is quarantined."""
    fault: str | None
    """A key of QUARANTINED, CUT, or None for a good row."""
    label: str | None = None
    """Its class, as text; None where classes are not asked for, or the row is quarantined."""
    context: str | None = None
    """What an instruction is about, empty if it is about nothing more; None where rows are no instructions."""
    response: str | None = None
    """What is to be answered; None where rows are no instructions."""

    @property
    def parts(self) -> list[str]:
        """All that it says but for its class."""
        return [self.text, *(part for part in self[3:] if part is not None)]

    @property
    def content(self) -> bytes:
        """The same, in one."""
        return "\0".join(self.parts).encode()

    @property
    def wording(self) -> bytes:
        """The same, however it is written: without case, and with one space for all white space between two words."""
        return "\0".join(
            " ".join(unicodedata.normalize("NFKC", part).casefold().split()) for part in self.parts
        ).encode()


def read_columns(path: Path, start: int, end: int, names: Sequence[str]) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """Yield the rows from `start` to before `end`, group by group: position of the first, and name -> values.

    A group was written as one batch, of bounded size, and memory holds one. Columns that the file lacks are left out.
    """
    import pyarrow.parquet as pq

    first = 0
    # As pyarrow opens it by default, the first group brings the columns' bytes of the whole file into memory.
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        names = [name for name in names if name in file.schema_arrow.names]
        for group in range(file.num_row_groups):
            num_rows = file.metadata.row_group(group).num_rows
            begin, stop = max(start - first, 0), min(end - first, num_rows)
            if begin < stop:
                table = file.read_row_group(group, columns=names).slice(begin, stop - begin)
                yield first + begin, table.to_pydict()
            first += num_rows


def read_rows(path: Path, start: int, end: int) -> Iterator[tuple[int, list[Row]]]:
    """Yield the same as rows of text, whichever of their fields the file has."""
    for first, columns in read_columns(path, start, end, Row._fields):
        values = (columns.get(name, itertools.repeat(None)) for name in Row._fields)
        yield first, list(map(Row, *values))


class RowCheck:
    """Judges rows in the order of the data set, and counts."""

    def __init__(self, place: str, *, key: str = "text_column") -> None:
        """`place` names source and column in a refusal, `key` what of `dataset` could mend it."""
        self._place, self._key = place, key
        self._num_rows = 0
        self._faults: dict[str, tuple[int, int]] = {}

    def take(self, batch: Iterable[Sequence[Any]]) -> list[Row]:
        """Return the next rows as they are kept: texts, texts with a class, or instruction, context and response.

        Raises DataError for a value that is neither text nor null, or a class that is no text and no whole number. An
        instruction without a response is left out, one without a context is not.
        """
        rows = []
        for values in batch:
            row = self._judge(values[0])
            if len(values) > 2:
                row = _join_instruction(row, *map(self._judge, values[1:]))
            elif len(values) > 1 and row.fault not in QUARANTINED:
                row = self._set_label(row, values[1])
            if row.fault is not None:
                first, count = self._faults.get(row.fault, (self._num_rows, 0))
                self._faults[row.fault] = (first, count + 1)
            self._num_rows += 1
            rows.append(row)
        return rows

    def _judge(self, value: Any) -> Row:
        if value is not None and not isinstance(value, str):
            raise DataError(f"{self._place}: row {self._num_rows} is {type(value).__name__}; allowed: text")
        return judge_value(value)

    def _set_label(self, row: Row, label: Any) -> Row:
        if isinstance(label, float) and (math.isnan(label) or (label.is_integer() and abs(label) < _INEXACT)):
            # So a column of whole numbers is read where some rows have none.
            label = None if math.isnan(label) else int(label)
        is_text = isinstance(label, str)
        if label in (None, *NO_CLASS, *map(str, NO_CLASS)) or (is_text and not label.strip()):
            return Row("", UNLABELLED)
        if (len(label) > MAX_LABEL_CHARACTERS or not label.isprintable()) if is_text else not isinstance(label, int):
            raise DataError(
                f"{self._place}: the class of row {self._num_rows} is {str(label)[:80]!r} ({type(label).__name__}); "
                f"allowed: a whole number, or a line of text of at most {MAX_LABEL_CHARACTERS} characters"
            )
        return row._replace(label=label.strip() if is_text else str(int(label)))

    def finish(self) -> None:
        """Raise DataError if so many rows are quarantined that the data set is not what it was taken for."""
        left_out = {fault: result for fault, result in self._faults.items() if fault in QUARANTINED}
        num_unlabelled = left_out.get(UNLABELLED, (0, 0))[1]
        num_bad = sum(count for _, count in left_out.values()) - num_unlabelled
        for number, most, key in (
            (num_bad, MAX_QUARANTINED_SHARE, self._key), (num_unlabelled, MAX_UNLABELLED_SHARE, "label"),
        ):  # fmt: skip
            if number > most * self._num_rows:
                text = "; ".join(
                    f"{count} {'row is' if count == 1 else 'rows are'} {QUARANTINED[fault]}, the first is row {first}"
                    for fault, (first, count) in sorted(left_out.items(), key=lambda item: item[1])
                )
                raise DataError(
                    f"{self._place}: {text} (counting from 0, of {self._num_rows} rows read); allowed: at most "
                    f"{most:.0%} of such rows, which are left out; drop or mend them in the source, or set "
                    f"dataset.{key}"
                )


def _join_instruction(instruction: Row, context: Row, response: Row) -> Row:
    faults = [part.fault for part in (instruction, response, context) if part.fault is not None]
    left_out = [fault for fault in faults if fault in QUARANTINED]
    if context.fault in ("null", "blank"):
        left_out.remove(context.fault)
    if left_out:
        return Row("", left_out[0], context="", response="")
    return Row(instruction.text, CUT if CUT in faults else None, None, context.text, response.text)


def describe_faults(counts: Mapping[str, int]) -> str:
    """Return how many rows have which of the faults, such as `2 rows: null; 1 row: empty or white space`."""
    return "; ".join(
        f"{count} {'row' if count == 1 else 'rows'}: {_IN_WORDS[fault]}" for fault, count in counts.items()
    )


def describe_tokenised(facts: TokenisedFacts) -> str:
    """Return what the first rows became, such as `0.02 % unknown tokens, 12 rows without a target`."""
    frame = f"behind {facts.before} and " * bool(facts.before) + f"before {facts.behind}"
    return (
        f"of the first {wording.format_count(facts.num_rows)} rows, each {frame}, "
        f"{100 * facts.unknown_share:.2f} % unknown tokens, "
        f"{wording.format_plural(facts.num_rows_without_target, 'row')} without a target, "
        f"{wording.format_count(facts.num_equal_rows)} with the tokens of another"
    )


def list_class_names(labels: Iterable[str]) -> list[str]:
    """Return the distinct classes in order: whole numbers by size, else by the alphabet."""
    names = set(labels)
    if all(name.removeprefix("-").isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def judge_value(value: str | None) -> Row:
    """Return the value as it is kept."""
    if value is None:
        return Row("", "null")
    if not value.strip():
        return Row("", "blank")
    # A byte order mark begins a file.
    text = value.removeprefix("\ufeff")[:MAX_CHARACTERS]
    if "\0" in text:
        return Row("", "nul")
    try:
        text.encode()
    except UnicodeEncodeError:
        return Row("", "surrogate")
    if not text.strip():
        return Row("", "blank")
    return Row(text, CUT if len(value) > MAX_CHARACTERS else None)
