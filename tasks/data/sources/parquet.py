"""Parquet files read in batches, of which memory holds one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_BUFFER_BYTES = 2**20


def open_parquet(path: Path, **options: Any) -> Any:
    """Return the pyarrow.parquet.ParquetFile, to be read by iter_batches.

    As pyarrow opens it by default, the first batch brings the columns' bytes of the whole file into memory.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES, **options)


def read_groups(file: Any, start: int, end: int, *, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Yield (position of its first row, pyarrow table) of each row group that rows from `start` to before `end` touch.

    Each without the rows of it that are not asked for; memory holds one.
    """
    first = 0
    for group in range(file.num_row_groups):
        num_rows = file.metadata.row_group(group).num_rows
        begin, stop = max(start - first, 0), min(end - first, num_rows)
        if begin < stop:
            yield first + begin, file.read_row_group(group, columns=list(columns)).slice(begin, stop - begin)
        first += num_rows
