"""The texts of a data set, read in order and only as far as asked, in batches, whatever they come from."""

import itertools
import json
import logging
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from tasks.data.builtin.corpus import read_corpus, read_corpus_by_package
from tasks.data.builtin.instructions import read_instructions
from tasks.data.sources.decoding import MOST_BYTES, bound_decoding
from tasks.data.sources.parquet_rows import read_column_names, read_values
from tasks.params.prompts import choose_columns
from tasks.params.sources import DatasetParams
from tasks.process.failure import ConfigurationError, DataError, ResourceError, StageError
from tasks.services.hub_calls import bound_requests
from tasks.services.network import find_status_code, is_transient, name_error, walk_causes

BATCH_ROWS = 1_000
_MAX_LINE_BYTES = 16 * 2**20
_MAX_BATCH_CHARACTERS = 32_000_000


def read_source_values(
    dataset: DatasetParams, num_rows: int, *, commit: str | None
) -> Generator[list[Any], None, None]:
    """Yield batches of the text column's first `num_rows` values, unchecked, in the order of the source.

    With a label column: pairs of text and label; of instructions: instruction, context and response. Fewer come if the
    source has fewer. What stands behind the last one is not looked at.

    Raises DataError if the source cannot be read or has no such column, ResourceError if the Hub is away.
    """
    if dataset.kind == "builtin":
        labelled = ((text, package) for package, text in read_corpus_by_package())
        rows: Iterator[Any] = read_corpus() if dataset.label is None else labelled
        return _make_batches(itertools.islice(read_instructions() if dataset.holds_instructions else rows, num_rows))
    if dataset.kind == "hub":
        assert commit is not None
        return _read_hub(dataset, num_rows, commit)
    file = Path(dataset.location)
    values = _read_parquet(file, dataset) if file.suffix == ".parquet" else _read_jsonl(file, dataset)
    return _make_batches(itertools.islice(values, num_rows))


def _make_batches(values: Iterable[Any]) -> Generator[list[Any], None, None]:
    """Yield the values in batches of bounded size, whatever the size of one."""
    batch: list[Any] = []
    num_characters = 0
    for value in values:
        batch.append(value)
        num_characters += sum(
            len(part) for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, str)
        )
        if len(batch) == BATCH_ROWS or num_characters > _MAX_BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _choose_columns(dataset: DatasetParams, columns: Iterable[str], where: str = "") -> list[str | None]:
    """Return which of the columns are read: text and class, or instruction, context (None: there is none) and response.

    Raises DataError if one is not there.
    """
    there = sorted(columns)
    try:
        if dataset.holds_instructions:
            return list(choose_columns(dataset.named_columns, there).values())
        for key in ("text_column", "label"):
            if (column := getattr(dataset, key)) is not None and column not in there:
                listed = ", ".join(there) or "none"
                raise ValueError(f"no column {column!r}; the columns there are: {listed}; set dataset.{key}")
    except ValueError as error:
        raise DataError(f"{dataset.place}: {where}{error}") from None
    return [dataset.text_column, *([] if dataset.label is None else [dataset.label])]


def _read_parquet(path: Path, dataset: DatasetParams) -> Iterator[Any]:
    place = f"{dataset.place}"
    columns = _choose_columns(dataset, read_column_names(path, place=place))
    present = [column for column in columns if column is not None]
    values = read_values(path, present, place=place, num_texts=len(present) if dataset.holds_instructions else 1)
    if None not in columns:
        yield from values
        return
    for instruction, response in values:
        yield instruction, None, response


def _read_jsonl(path: Path, dataset: DatasetParams) -> Iterator[Any]:
    """Yield the column of every JSON object, one a line; empty lines are no rows."""
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(_MAX_LINE_BYTES)
            if not line:
                return
            if line.strip():
                yield _parse_line(line, f"line {number}", dataset)


def _parse_line(line: bytes, where: str, dataset: DatasetParams) -> Any:
    place = f"{dataset.place}: {where}"
    if len(line) == _MAX_LINE_BYTES and not line.endswith(b"\n"):
        raise DataError(f"{place} is longer than {_MAX_LINE_BYTES} bytes; allowed: one JSON object a line")
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}, byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not valid JSON ({error}); allowed: one JSON object a line") from None
    if not isinstance(row, dict):
        raise DataError(f"{place} holds {type(row).__name__}; allowed: one JSON object a line")
    columns = _choose_columns(dataset, row, f"{where} has ")
    values = tuple(None if column is None else row[column] for column in columns)
    return values if len(values) > 1 else values[0]


def _read_hub(dataset: DatasetParams, num_rows: int, commit: str) -> Generator[list[Any], None, None]:
    """Yield the column of a Hub data set as it streams in; files further on are never fetched."""
    import datasets

    datasets.disable_progress_bars()
    bound_requests()
    # Its warnings show addresses with signatures.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    place = f"{dataset.place} at {commit}"
    try:
        with bound_decoding(MOST_BYTES, place=place):
            left = num_rows
            for split in dataset.split.split("+"):
                rows = datasets.load_dataset(dataset.location, revision=commit, split=split, streaming=True)
                for batch in rows.iter(batch_size=BATCH_ROWS):
                    columns = _choose_columns(dataset, batch)
                    empty = [None] * len(batch[columns[0]])
                    parts = [empty if column is None else batch[column] for column in columns]
                    values = list(zip(*parts, strict=True)) if len(parts) > 1 else parts[0]
                    yield values[:left]
                    left -= len(values)
                    if left <= 0:
                        return
    except Exception as error:  # whatever the reader of the files' format raises
        raise _translate_hub_error(error, dataset, place) from None


def _translate_hub_error(error: Exception, dataset: DatasetParams, place: str) -> StageError:
    """Return the one line for what went wrong while a Hub data set was read."""
    if isinstance(error, StageError):
        return error
    if any(isinstance(cause, MemoryError) for cause in walk_causes(error)):
        return DataError(f"{place}: decoding its rows takes more than {MOST_BYTES / 2**30:.0f} GiB at one time")
    if is_transient(error):
        return ResourceError(
            f"{place}: the Hub could not be reached ({name_error(error)}); check the network and run again"
        )
    if find_status_code(error) is not None:
        return DataError(f"{place}: the Hub refused ({name_error(error)}); accept its terms there, or set HF_TOKEN")
    message = " ".join(str(error).split())[:300]
    if message.startswith(("Bad split", "Unknown split")):
        return ConfigurationError(f"params.yaml: dataset.split: got {dataset.split!r}; {message}")
    return DataError(f"{place}: cannot be read ({type(error).__name__}: {message})")
