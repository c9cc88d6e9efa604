"""What a segment has learned from so far, in files without a name: memory does not grow with it."""

import contextlib
import os
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from training.arrays import parts_of_arrays, write_arrays
from training.failure import BadCheckpointError, UnwritableError
from training.files import make_folder

LEDGER_COLUMNS = ("rank", "step", "row_id", "num_tokens")
LEDGER_DTYPE = np.dtype(np.int32)
"""16 bytes per sample."""
_ENTRY_BYTES = len(LEDGER_COLUMNS) * LEDGER_DTYPE.itemsize
_PART_BYTES = 2**16 * _ENTRY_BYTES


class Spool:
    """Entries of the ledger and lines of steps.jsonl, both in the order of the steps.

    The files are in `folder`, since /tmp is memory on some machines, and gone when the process ends, however it ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with contextlib.ExitStack() as opened, self._needing_room("its files"):
            make_folder(folder)
            # Without buffers: one that a full disk did not take would be written again when the file is closed.
            self._entries: IO[bytes] = opened.enter_context(tempfile.TemporaryFile(buffering=0, dir=folder))
            self._lines: IO[bytes] = opened.enter_context(tempfile.TemporaryFile(buffering=0, dir=folder))
            weakref.finalize(self, opened.pop_all().close)

    def append(self, entries: np.ndarray, lines: bytes) -> None:
        """Append entries, (n, 4) LEDGER_COLUMNS, and whole lines; raises UnwritableError if there is no room."""
        self._add(self._entries, entries.tobytes())
        self._add(self._lines, lines)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines."""
        self._lines.seek(0)
        with open(self._lines.fileno(), "rb", closefd=False) as lines:
            yield from lines

    def save(self, *, ledger: Path, lines: Path) -> None:
        """Write ledger.npz and steps.jsonl; OSError if there is no room."""
        num_rows = self._entries.seek(0, os.SEEK_END) // _ENTRY_BYTES
        write_arrays(ledger, LEDGER_COLUMNS, self._parts, num_rows=num_rows, dtype=LEDGER_DTYPE)
        self._lines.seek(0)
        with lines.open("wb") as file:
            shutil.copyfileobj(self._lines, file)

    def load_lines(self, file: Path) -> None:
        """Append the lines of a steps.jsonl."""
        with file.open("rb") as saved:
            while part := saved.read(_PART_BYTES):
                self._add(self._lines, part)

    def load_ledger(self, file: Path) -> None:
        """Append the entries of a ledger.npz; raises BadCheckpointError if it is none."""
        for part in _entries_of(file):
            self.append(part, b"")

    def _add(self, file: IO[bytes], added: bytes) -> None:
        with self._needing_room(f"{len(added):,} bytes more"):
            file.seek(0, os.SEEK_END)
            left = memoryview(added)
            while left:
                left = left[file.write(left) :]

    @contextlib.contextmanager
    def _needing_room(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnwritableError(
                f"{self._folder}: {error.strerror}: the ledger needs {what}; the last checkpoint is whole: make room "
                "and run again"
            ) from None

    def _parts(self) -> Iterator[np.ndarray]:
        self._entries.seek(0)
        while raw := self._entries.read(_PART_BYTES):
            yield np.frombuffer(raw, dtype=LEDGER_DTYPE).reshape(-1, len(LEDGER_COLUMNS))


def _entries_of(file: Path) -> Iterator[np.ndarray]:
    try:
        for columns in parts_of_arrays(file, LEDGER_COLUMNS):
            if other := {str(numbers.dtype) for numbers in columns} - {LEDGER_DTYPE.name}:
                raise ValueError(f"numbers are {', '.join(sorted(other))}; allowed: {LEDGER_DTYPE}")
            yield np.stack(columns, axis=1)
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile) as error:
        raise BadCheckpointError(f"{file}: not loadable: {' '.join(str(error).split())[:300]}") from None
