"""The texts of a parquet file: bounded by what its rows become, not by how they are encoded."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tasks.data.sources.decoding import MOST_BYTES, bound_decoding
from tasks.data.sources.parquet import open_parquet
from tasks.data.sources.row_policy import MAX_CHARACTERS
from tasks.process.failure import DataError

_MAX_UNPACKED_BYTES = 64 * 2**20
_MAX_RATIO = 200
"""Of unpacked to packed bytes of a larger column; texts have 2 to 20."""
_BATCH_BYTES = 32 * 2**20
_BATCH_ROWS = 1_000
_SPARE_BYTES = 2**30
_SHARED_BYTES = 16 * 2**20
"""Of a column's largest part: beyond that pyarrow would keep all other values too, to know which are shared."""


def read_values(path: Path, columns: list[str], *, place: str, num_texts: int = 1) -> Iterator[Any]:
    """Yield each row's text, or the values of all columns as a tuple if there are several; the first ones are texts.

    A text of more characters than are kept is cut to one more than that. Raises DataError, naming `place`, if the file
    cannot be read, one of the first columns holds no text, or the rows are far larger than the file.
    """
    import pyarrow as pa

    try:
        with open_parquet(path) as file:
            metadata = file.metadata
            for column in columns:
                is_text = column in columns[:num_texts]
                _require_kind(file.schema_arrow.field(column).type, column, place, is_text=is_text)
        sizes = {column: _read_column_sizes(metadata, column, place) for column in columns}
        largest = max(largest for _, largest in sizes.values())
        # As a dictionary, a value that many rows share is decoded once. In a larger part the limit below ends a file
        # whose rows share what does not fit into memory as often as there are rows.
        shared = [column for column in columns if sizes[column][1] <= _SHARED_BYTES]
        with (
            open_parquet(path, read_dictionary=shared, metadata=metadata) as file,
            bound_decoding(min(MOST_BYTES, _SPARE_BYTES + 4 * largest), place=place),
        ):
            packed = sum(sizes[column][0] for column in columns[:num_texts])
            yield from _read_rows(file, columns, num_texts=num_texts, packed=packed, largest=largest, place=place)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{place}: no readable parquet file ({error}); write it anew") from None


def read_column_names(path: Path, *, place: str) -> list[str]:
    """Return the names of the file's columns. Raises DataError, naming `place`, if it cannot be read."""
    import pyarrow as pa

    try:
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{place}: no readable parquet file ({error}); write it anew") from None


def _read_rows(
    file: Any, columns: list[str], *, num_texts: int, packed: int, largest: int, place: str
) -> Iterator[Any]:
    rows_of_group = max((file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)), default=1)
    batch_rows = max(1, min(_BATCH_ROWS, rows_of_group * _BATCH_BYTES // max(largest, 1)))
    first = num_characters = 0
    for batch in file.iter_batches(batch_rows, columns=columns, use_threads=False):
        parts = [_decode_values(batch.column(name), first, place) for name in columns]
        for values in zip(*parts, strict=True):
            num_characters += sum(len(text) for text in values[:num_texts] if isinstance(text, str))
            if num_characters > max(_MAX_UNPACKED_BYTES, _MAX_RATIO * packed):
                raise _make_size_error(columns[0], packed, f"over {num_characters:,} characters of text", place)
            yield values if len(columns) > 1 else values[0]
        first += batch.num_rows


def _decode_values(values: Any, first_row: int, place: str) -> Iterable[Any]:
    """Yield the batch as Python values; those that are equal are one. DataError with the row that is no UTF-8."""
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type):
        for row, value in enumerate(values, start=first_row):
            yield _convert_value(value, row, place)
        return
    known: dict[int | None, Any] = {None: None}
    for row, index in enumerate(values.indices.to_pylist(), start=first_row):
        if index not in known:
            known[index] = _convert_value(values.dictionary[index], row, place)
        yield known[index]


def _convert_value(value: Any, row: int, place: str) -> Any:
    try:
        found = value.as_py()
    except UnicodeDecodeError:
        raise DataError(f"{place}: row {row} is not UTF-8; mend it in the source") from None
    return found[: MAX_CHARACTERS + 1] if isinstance(found, str) else found


def _require_kind(kind: Any, column: str, place: str, *, is_text: bool) -> None:
    import pyarrow as pa

    found = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_string = pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)
    if is_text and not is_string:
        raise DataError(f"{place}: column {column!r} holds {kind}; allowed: strings")
    if pa.types.is_nested(found) or pa.types.is_binary(found) or pa.types.is_large_binary(found):
        raise DataError(f"{place}: column {column!r} holds {kind}; allowed: strings or whole numbers")


def _read_column_sizes(metadata: Any, column: str, place: str) -> tuple[int, int]:
    """Return the column's packed size, and the unpacked size of the largest part of it, as the file claims.

    Raises DataError if it unpacks to far more than texts do: reading one page would take all memory.
    """
    index = next(at for at in range(metadata.num_columns) if metadata.schema.column(at).path == column)
    packed = largest = 0
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(index)
        unpacked = chunk.total_uncompressed_size
        if unpacked > max(_MAX_UNPACKED_BYTES, _MAX_RATIO * chunk.total_compressed_size):
            raise _make_size_error(column, chunk.total_compressed_size, f"{unpacked:,}", place)
        packed, largest = packed + chunk.total_compressed_size, max(largest, unpacked)
    return packed, largest


def _make_size_error(column: str, packed: int, unpacked: str, place: str) -> DataError:
    return DataError(
        f"{place}: column {column!r} unpacks {packed:,} bytes to {unpacked}; allowed: at most {_MAX_RATIO} times "
        "as many"
    )
