"""Parquet files read in batches, of which memory holds one."""

from pathlib import Path
from typing import Any

_BUFFER_BYTES = 2**20


def open_parquet(path: Path, **options: Any) -> Any:
    """Return the pyarrow.parquet.ParquetFile, to be read by iter_batches.

    As pyarrow opens it by default, the first batch brings the columns' bytes of the whole file into memory.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES, **options)
