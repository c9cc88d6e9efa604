"""What a segment has learned from so far, in files without a name: memory does not grow with it."""

import contextlib
import os
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from training.process.failure import BadCheckpointError, UnwritableError
from training.process.files import make_folder
from training.record.arrays import parts_of_arrays, write_arrays

LEDGER_COLUMNS = ("rank", "step", "row_id", "num_tokens")
LEDGER_DTYPE = np.dtype(np.int32)
"""16 bytes per sample."""
_ENTRY_BYTES = len(LEDGER_COLUMNS) * LEDGER_DTYPE.itemsize
_PART_BYTES = 2**16 * _ENTRY_BYTES


class LedgerFile:
    """Entries of the ledger and lines of steps.jsonl, both in the order of the steps.

    The files are in `folder`, since /tmp is memory on some machines, and go when the process ends, however it ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: tuple[IO[bytes], IO[bytes]] | None = None

    def append(self, entries: np.ndarray, lines: bytes) -> None:
        """Append entries, (n, 4) LEDGER_COLUMNS, and whole lines; raises UnwritableError if there is no room."""
        for file, added in zip(self._made(), (entries.tobytes(), lines), strict=True):
            self._add(file, added)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines."""
        if self._files is None:
            return
        _, written = self._files
        written.seek(0)
        with open(written.fileno(), "rb", closefd=False) as lines:
            yield from lines

    def save(self, *, ledger: Path, lines: Path) -> None:
        """Write ledger.npz and steps.jsonl; OSError if there is no room."""
        entries, written = self._made()
        num_rows = entries.seek(0, os.SEEK_END) // _ENTRY_BYTES
        write_arrays(ledger, LEDGER_COLUMNS, lambda: _parts(entries), num_rows=num_rows, dtype=LEDGER_DTYPE)
        written.seek(0)
        with lines.open("wb") as file:
            shutil.copyfileobj(written, file)

    def load_lines(self, file: Path) -> None:
        """Append the lines of a steps.jsonl."""
        with file.open("rb") as saved:
            while part := saved.read(_PART_BYTES):
                self._add(self._made()[1], part)

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

    def _made(self) -> tuple[IO[bytes], IO[bytes]]:
        """Return the file of the entries and that of the lines, made when first needed."""
        if self._files is None:
            # Where a file cannot be without a name from the start, a kill may leave it: under one that is cleared away.
            # No buffers: what a full disk did not take would be written again when the file is closed.
            how: dict[str, Any] = {"buffering": 0, "dir": self._folder, "prefix": ".spool.", "suffix": ".tmp"}
            with contextlib.ExitStack() as opened, self._needing_room("two files"):
                make_folder(self._folder)
                entries = opened.enter_context(tempfile.TemporaryFile(**how))
                lines = opened.enter_context(tempfile.TemporaryFile(**how))
                weakref.finalize(self, opened.pop_all().close)
            self._files = entries, lines
        return self._files

    @contextlib.contextmanager
    def _needing_room(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            there = next(folder for folder in (self._folder, *self._folder.parents) if folder.is_dir())
            free = shutil.disk_usage(there).free
            raise UnwritableError(
                f"{self._folder}: {error.strerror}: the ledger needs {what}, {free:,} bytes are free; what is saved "
                "stays: make room and run again"
            ) from None


def _parts(entries: IO[bytes]) -> Iterator[np.ndarray]:
    entries.seek(0)
    while raw := entries.read(_PART_BYTES):
        yield np.frombuffer(raw, dtype=LEDGER_DTYPE).reshape(-1, len(LEDGER_COLUMNS))


def _entries_of(file: Path) -> Iterator[np.ndarray]:
    try:
        for columns in parts_of_arrays(file, LEDGER_COLUMNS):
            if other := {str(numbers.dtype) for numbers in columns} - {LEDGER_DTYPE.name}:
                raise ValueError(f"numbers are {', '.join(sorted(other))}; allowed: {LEDGER_DTYPE}")
            yield np.stack(columns, axis=1)
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile) as error:
        raise BadCheckpointError(f"{file}: not loadable: {' '.join(str(error).split())[:300]}") from None
