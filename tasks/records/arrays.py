"""Whole numbers in a .npy file, a part at a time, so that memory does not grow with them."""

import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.integer]
_PART = 2**16
"""Numbers that are read at once."""


def read_parts(file: Path) -> Iterator[Numbers]:
    """Yield the numbers of a .npy file; raises ValueError or OSError if it is not whole, or no column of them."""
    with file.open("rb") as stream:
        length, dtype = _read_header(stream)
        for first in range(0, length, _PART):
            num_bytes = min(_PART, length - first) * dtype.itemsize
            raw = stream.read(num_bytes)
            if len(raw) < num_bytes:
                raise ValueError(f"ends within its {length:,} numbers")
            yield np.frombuffer(raw, dtype)
        if stream.read(1):
            raise ValueError(f"goes on after its {length:,} numbers")


def _read_header(stream: IO[bytes]) -> tuple[int, np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"array of version {version}; allowed: (1, 0)")
    try:
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"header: {error}") from None
    if len(shape) != 1 or dtype.kind not in "iu":
        raise ValueError(f"array of {dtype}, shape {shape}; allowed: whole numbers in one dimension")
    return shape[0], dtype
