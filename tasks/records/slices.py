"""data/slices/: the rows of every range and the held-out ones, as arrays."""

import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import IO, ClassVar

import numpy as np
from numpy.typing import NDArray

from tasks.records.facts import SliceFacts
from tasks.records.stage_file import StageFile

Numbers = NDArray[np.integer]
_PART = 2**16
"""Numbers that are read at once."""


class SliceManifest(SliceFacts, StageFile):
    """data/slices/<start>-<end>/manifest.json"""

    NAME: ClassVar[str] = "manifest.json"

    class_names: list[str] = []
    """The classes that rows may have, in the order of their numbers; empty where rows have none."""
    files: dict[str, str] = {}
    """Name of an array -> its sha256."""


class SlicesManifest(StageFile):
    """data/slices/manifest.json: which slices there are, and what their tokens are of."""

    NAME: ClassVar[str] = "manifest.json"

    tokenizer_digest: str | None = None
    """sha256 over the tokenizer's files; null for images."""
    vocab_size: int | None
    """Rows of the model's embedding; null for images."""
    eos_token_id: int | None
    """The token that closes a row; null for images."""
    workload: str
    """The ML problem that they were made for."""
    class_names: list[str] = []
    """The classes of all rows, in the order of their numbers; empty where rows have none."""
    slices: dict[str, SliceFacts]
    """Range -> what is in it, the held-out rows among them."""
    heldout: str
    """The range that no cell trains on."""


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
