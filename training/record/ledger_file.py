"""What a segment has learned from so far, appended to two files, and a number that tells which rows each step had.

Memory does not grow with it. Needs no torch.
"""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from training.process.failure import BadCheckpointError, UnwritableError
from training.process.files import make_folder

LEDGER, STEPS = "ledger.int32", "steps.jsonl"
LEDGER_COLUMNS = ("rank", "step", "row_id", "num_tokens")
"""The numbers of an entry of the ledger, of which there is one per sample."""
LEDGER_DTYPE = np.dtype(np.int32)
ENTRY_BYTES = len(LEDGER_COLUMNS) * LEDGER_DTYPE.itemsize
_PART_BYTES = 2**20


class LedgerFile:
    """The ledger and steps.jsonl as they grow, in the order of the steps; a checkpoint holds a copy of both.

    They are in `folder`, since /tmp is memory on some machines. They have no name: they go when the process ends,
    however it ends, and nobody else can write to them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, entries: bytes, lines: bytes) -> None:
        """Append whole entries and whole lines; raises UnwritableError if there is no room."""
        self._add(LEDGER, entries)
        self._add(STEPS, lines)

    def save(self, folder: Path) -> None:
        """Write both into the folder; OSError if there is no room."""
        for name, file in self._files.items():
            file.seek(0)
            with (folder / name).open("wb") as copy:
                shutil.copyfileobj(file, copy, _PART_BYTES)

    def load(self, folder: Path) -> None:
        """Append what was saved there; raises BadCheckpointError if it is no ledger."""
        try:
            if rest := (folder / LEDGER).stat().st_size % ENTRY_BYTES:
                raise BadCheckpointError(
                    f"{folder / LEDGER}: not loadable: {rest} bytes after its last entry; an entry has {ENTRY_BYTES}"
                )
            for name in (LEDGER, STEPS):
                with (folder / name).open("rb") as saved:
                    while part := saved.read(_PART_BYTES):
                        self._add(name, part)
        except FileNotFoundError as error:
            raise BadCheckpointError(f"{error.filename}: not loadable: it is missing") from None

    def _add(self, name: str, added: bytes) -> None:
        with self._explain_missing_room(f"{len(added):,} bytes more"):
            self._files[name].seek(0, os.SEEK_END)
            left = memoryview(added)
            while left:
                left = left[self._files[name].write(left) :]

    @cached_property
    def _files(self) -> dict[str, IO[bytes]]:
        # Where a file cannot be without a name from the start, a kill may leave it: under one that is cleared away.
        # No buffers: what a full disk did not take would be written again when the file is closed.
        how: dict[str, Any] = {"buffering": 0, "dir": self._folder, "prefix": ".spool.", "suffix": ".tmp"}
        with contextlib.ExitStack() as opened, self._explain_missing_room("two files"):
            make_folder(self._folder)
            files = {name: opened.enter_context(tempfile.TemporaryFile(**how)) for name in (LEDGER, STEPS)}
            weakref.finalize(self, opened.pop_all().close)
        return files

    @contextlib.contextmanager
    def _explain_missing_room(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            there = next(folder for folder in (self._folder, *self._folder.parents) if folder.is_dir())
            free = shutil.disk_usage(there).free
            raise UnwritableError(
                f"{self._folder}: {error.strerror}: the ledger needs {what}, {free:,} bytes are free; what is saved "
                "stays: make room and run again"
            ) from None


def count_targets(line: Mapping[str, Any]) -> int:
    """Return from how many labels a step learned, by its line of steps.jsonl; of none it has no loss, and logs 0.

    The number stands there where it is not that of the tokens (training/record/segment.py).
    """
    return int(line.get("num_targets", line["num_tokens"]))


_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def digest_rows(steps: Sequence[Sequence[np.ndarray]]) -> int:
    """Return a number of 64 bits for the rows of each step, whatever their order in it; of several ranks, their sum."""
    steps_of_parts = ((step, rows) for step, parts in enumerate(steps, start=1) for rows in parts)
    return sum(sum_mixed(rows.astype(np.uint64) + np.uint64(step << 40)) for step, rows in steps_of_parts) % 2**64


def sum_mixed(numbers: NDArray[np.integer]) -> int:
    """Return the sum of the numbers mixed (splitmix64), so that no other ones come to it by accident, modulo 2^64."""
    # Begun with an increment, as splitmix64 does: 0 mixes to 0, and row 0 would not count.
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in _MIX:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
