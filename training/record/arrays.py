"""Whole numbers in .npy and .npz files, a part at a time, so that memory does not grow with them; needs no torch."""

import contextlib
import tokenize
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from training.process.safe_loading import require_plain_archive

Numbers = NDArray[np.integer]
_PART = 2**16
"""Numbers of a column that are read at once."""


class _Column:
    """One array of one dimension, as numpy.save wrote it."""

    def __init__(self, stream: IO[bytes]) -> None:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"array of version {version}; allowed: (1, 0)")
        try:
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        except (SyntaxError, tokenize.TokenError) as error:
            raise ValueError(f"header: {error}") from None
        if len(shape) != 1 or dtype.kind not in "iu":
            raise ValueError(f"array of {dtype}, shape {shape}; allowed: whole numbers in one dimension")
        self._stream, self._dtype, self.length = stream, dtype, shape[0]

    def parts(self) -> Iterator[Numbers]:
        """Yield all numbers; raises ValueError if the file does not end with the last of them."""
        for first in range(0, self.length, _PART):
            count = min(_PART, self.length - first)
            raw = self._stream.read(count * self._dtype.itemsize)
            if len(raw) < count * self._dtype.itemsize:
                raise ValueError(f"ends within its {self.length:,} numbers")
            yield np.frombuffer(raw, dtype=self._dtype)
        # An archive's checksum is looked at where it ends.
        if self._stream.read(1):
            raise ValueError(f"goes on after its {self.length:,} numbers")


def parts_of_array(file: Path) -> Iterator[Numbers]:
    """Yield the numbers of a .npy file; raises ValueError or OSError if it is not whole."""
    with file.open("rb") as stream:
        yield from _Column(stream).parts()


def parts_of_arrays(file: Path, names: Sequence[str]) -> Iterator[tuple[Numbers, ...]]:
    """Yield the columns of a .npz file, parts of the same rows together.

    Raises ValueError, KeyError, OSError or zipfile.BadZipFile if one is missing, not whole or of another length.
    """
    require_plain_archive(file)
    with zipfile.ZipFile(file) as archive, contextlib.ExitStack() as opened:
        columns = [_Column(opened.enter_context(archive.open(f"{name}.npy"))) for name in names]
        if len({column.length for column in columns}) > 1:
            lengths = ", ".join(f"{name} {column.length:,}" for name, column in zip(names, columns, strict=True))
            raise ValueError(f"columns of different lengths: {lengths}")
        yield from zip(*(column.parts() for column in columns), strict=True)


def write_arrays(
    file: Path, names: Sequence[str], parts: Callable[[], Iterator[Numbers]], *, num_rows: int, dtype: np.dtype
) -> None:
    """Write the columns of a table as numpy.savez would, under these names.

    parts: gives the table's rows from the first on, each time that it is called; each part (n, len(names)), `dtype`.
    """
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (num_rows,)}
    with zipfile.ZipFile(file, "w") as archive:
        for index, name in enumerate(names):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as column:
                np.lib.format.write_array_header_1_0(column, header)
                for part in parts():
                    column.write(part[:, index].tobytes())
