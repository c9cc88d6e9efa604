"""The texts of a data set, read in order and only as far as asked, in batches, whatever they come from."""

import itertools
import json
import logging
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from tasks.builtin.corpus import corpus_rows, corpus_rows_by_package
from tasks.services.network import is_transient, reason, status_code
from tasks.sources.parquet import open_parquet
from tasks.stage.failure import ConfigurationError, DataError, ResourceError, StageError
from tasks.stage.source_params import DatasetParams

BATCH_ROWS = 1_000
_MAX_LINE_BYTES = 16 * 2**20
_MAX_UNPACKED_BYTES = 64 * 2**20
_MAX_RATIO = 200
"""Of unpacked to packed bytes of a larger column; texts have 2 to 20."""
_MAX_BATCH_CHARACTERS = 32_000_000


def values_of(dataset: DatasetParams, num_rows: int, *, commit: str | None) -> Generator[list[Any], None, None]:
    """Yield batches of the text column's first `num_rows` values, unchecked, in the order of the source.

    With a label column: pairs of text and label. Fewer come if the source has fewer. What stands behind the last one is
    not looked at.

    Raises DataError if the source cannot be read or has no such column, ResourceError if the Hub is away.
    """
    if dataset.kind == "builtin":
        labelled = ((text, package) for package, text in corpus_rows_by_package())
        return _batches(itertools.islice(corpus_rows() if dataset.label is None else labelled, num_rows))
    if dataset.kind == "hub":
        assert commit is not None
        return _hub_texts(dataset, num_rows, commit)
    file = Path(dataset.location)
    if file.suffix == ".parquet":
        return _parquet_texts(file, num_rows, dataset)
    return _batches(itertools.islice(_jsonl_texts(file, dataset), num_rows))


def _batches(values: Iterable[Any]) -> Generator[list[Any], None, None]:
    """Yield the values in batches of bounded size, whatever the size of one."""
    batch: list[Any] = []
    num_characters = 0
    for value in values:
        batch.append(value)
        text = value[0] if isinstance(value, tuple) else value
        num_characters += len(text) if isinstance(text, str) else 0
        if len(batch) == BATCH_ROWS or num_characters > _MAX_BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _missing_column(dataset: DatasetParams, columns: Iterable[str], where: str = "") -> DataError:
    there = sorted(columns)
    key = "text_column" if dataset.text_column not in there else "label"
    return DataError(
        f"dataset.source {dataset.source}: {where}no column {getattr(dataset, key)!r}; the columns there are: "
        f"{', '.join(there) or 'none'}; set dataset.{key}"
    )


def _columns(dataset: DatasetParams) -> list[str]:
    return [dataset.text_column, *([] if dataset.label is None else [dataset.label])]


def _parquet_texts(path: Path, num_rows: int, dataset: DatasetParams) -> Generator[list[Any], None, None]:
    import pyarrow as pa

    columns = _columns(dataset)
    first = 0
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            if not set(columns) <= set(schema.names):
                raise _missing_column(dataset, schema.names)
            _require_text(schema.field(dataset.text_column).type, dataset)
            for column in columns:
                _refuse_bomb(file.metadata, column, dataset)
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                parts = (batch.column(name).slice(0, num_rows - first) for name in columns)
                values = [_values_of(part, first, dataset) for part in parts]
                yield values[0] if dataset.label is None else list(zip(*values, strict=True))
                first += batch.num_rows
                if first >= num_rows:
                    return
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"dataset.source {dataset.source}: no readable parquet file ({error}); write it anew") from None


def _refuse_bomb(metadata: Any, column: str, dataset: DatasetParams) -> None:
    """Raise DataError if the column unpacks to far more than texts do: reading one page would take all memory."""
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group)
        for index in range(found.num_columns):
            chunk = found.column(index)
            unpacked = chunk.total_uncompressed_size
            if chunk.path_in_schema != column or unpacked <= _MAX_UNPACKED_BYTES:
                continue
            if unpacked > _MAX_RATIO * max(chunk.total_compressed_size, 1):
                raise DataError(
                    f"dataset.source {dataset.source}: column {column!r} unpacks {chunk.total_compressed_size:,} bytes "
                    f"to {unpacked:,}; allowed: at most {_MAX_RATIO} times as many"
                )


def _require_text(kind: Any, dataset: DatasetParams) -> None:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(
            f"dataset.source {dataset.source}: column {dataset.text_column!r} holds {kind}; allowed: strings"
        )


def _values_of(values: Any, first_row: int, dataset: DatasetParams) -> list[Any]:
    """Return the batch as Python strings. Raises DataError with the row number where the bytes are no UTF-8."""
    try:
        return list(values.to_pylist())
    except UnicodeDecodeError:
        pass
    for index, value in enumerate(values):
        try:
            value.as_py()
        except UnicodeDecodeError:
            raise DataError(
                f"dataset.source {dataset.source}: row {first_row + index} is not UTF-8; mend it in the source"
            ) from None
    raise AssertionError("a batch failed to decode and none of its rows did")


def _jsonl_texts(path: Path, dataset: DatasetParams) -> Iterator[Any]:
    """Yield the column of every JSON object, one a line; empty lines are no rows."""
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(_MAX_LINE_BYTES)
            if not line:
                return
            if line.strip():
                yield _value_of_line(line, f"line {number}", dataset)


def _value_of_line(line: bytes, where: str, dataset: DatasetParams) -> Any:
    place = f"dataset.source {dataset.source}: {where}"
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
    columns = _columns(dataset)
    if not set(columns) <= set(row):
        raise _missing_column(dataset, row, f"{where} has ")
    return row[dataset.text_column] if dataset.label is None else tuple(row[column] for column in columns)


def _hub_texts(dataset: DatasetParams, num_rows: int, commit: str) -> Generator[list[Any], None, None]:
    """Yield the column of a Hub data set as it streams in; files further on are never fetched."""
    import datasets

    datasets.disable_progress_bars()
    # Its warnings show addresses with signatures.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    place = f"dataset.source {dataset.source} at {commit}"
    try:
        left, columns = num_rows, _columns(dataset)
        for split in dataset.split.split("+"):
            rows = datasets.load_dataset(dataset.location, revision=commit, split=split, streaming=True)
            for batch in rows.iter(batch_size=BATCH_ROWS):
                if not set(columns) <= set(batch):
                    raise _missing_column(dataset, batch)
                values = batch[dataset.text_column]
                if dataset.label is not None:
                    values = list(zip(*(batch[column] for column in columns), strict=True))
                yield values[:left]
                left -= len(values)
                if left <= 0:
                    return
    except Exception as error:  # whatever the reader of the files' format raises
        raise _hub_failure(error, dataset, place) from None


def _hub_failure(error: Exception, dataset: DatasetParams, place: str) -> StageError:
    """Return the one line for what went wrong while a Hub data set was read."""
    if isinstance(error, StageError):
        return error
    if is_transient(error):
        return ResourceError(
            f"{place}: the Hub could not be reached ({reason(error)}); check the network and run again"
        )
    if status_code(error) is not None:
        return DataError(f"{place}: the Hub refused ({reason(error)}); accept its terms there, or set HF_TOKEN")
    message = " ".join(str(error).split())[:300]
    if message.startswith(("Bad split", "Unknown split")):
        return ConfigurationError(f"params.yaml: dataset.split: got {dataset.split!r}; {message}")
    return DataError(f"{place}: cannot be read ({type(error).__name__}: {message})")
