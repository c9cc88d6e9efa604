"""Numbers in ascending order, more of them than memory should hold: sorted runs wait in a file without a name."""

import itertools
import os
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from tasks.process.failure import ResourceError

_RUN = 2**16
"""Numbers that are sorted in memory at once: 512 KiB."""
_MARK_EVERY = 2**8
_FOLDER = Path(".work")
"""Below the project, where files that are not kept are: /tmp is memory on some machines."""
_WINDOW = 2**16
"""About how many numbers a window has, of all that are compared."""
_NUM_BYTES = 8


@dataclass(frozen=True)
class _Run:
    """Sorted numbers in the file."""

    start: int
    length: int
    marks: NDArray[np.int64]
    """The first number and every 256th after it."""
    largest: int
    """The last number."""

    def around(self, low: int | None, high: int | None) -> tuple[int, int]:
        """Return from where to where in the file all numbers from `low` to below `high` are, and few others."""
        if low is not None and low > self.largest:
            return self.start, self.start
        first = 0 if low is None else max(int(np.searchsorted(self.marks, low)) - 1, 0)
        last = len(self.marks) if high is None else int(np.searchsorted(self.marks, high))
        return self.start + first * _MARK_EVERY, self.start + min(last * _MARK_EVERY, self.length)


class SortedNumbers:
    """Whole numbers of up to 64 bits with sign, each as often as it was added; `windows` gives them back in order."""

    def __init__(self) -> None:
        self._waiting = array("q")
        self._file: IO[bytes] | None = None
        self._runs: list[_Run] = []
        self._num_filed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back; the numbers are gone."""
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return self._num_filed + len(self._waiting)

    def add(self, number: int) -> None:
        """Take one number."""
        self._waiting.append(number)
        if len(self._waiting) >= _RUN:
            self._file_run()

    def extend(self, numbers: NDArray[np.integer]) -> None:
        """Take all numbers of an array."""
        self._waiting.frombytes(numbers.astype(np.int64).tobytes())
        if len(self._waiting) >= _RUN:
            self._file_run()

    def _file_run(self) -> None:
        run = self._sorted_waiting()
        try:
            if self._file is None:
                _FOLDER.mkdir(exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=_FOLDER)  # noqa: SIM115  closed by close()
            self._file.write(run.data)
            self._file.flush()
        except OSError as error:
            raise ResourceError(
                f"{_FOLDER.resolve()}: {error.strerror}; numbers are sorted there, {_NUM_BYTES} bytes each; make room, "
                "or make it writable"
            ) from None
        self._runs.append(_Run(self._num_filed, len(run), run[::_MARK_EVERY].copy(), int(run[-1])))
        self._num_filed += len(run)
        self._waiting = array("q")

    def _sorted_waiting(self) -> NDArray[np.int64]:
        waiting = np.frombuffer(self._waiting, dtype=np.int64)
        waiting.sort()
        return waiting

    def between(self, low: int | None, high: int | None) -> NDArray[np.int64]:
        """Return all numbers from `low` to below `high` in ascending order; None is no bound."""
        found = [_cut(self._sorted_waiting(), low, high)]
        if self._file is not None:
            for first, last in (run.around(low, high) for run in self._runs):
                if first == last:
                    continue
                raw = os.pread(self._file.fileno(), (last - first) * _NUM_BYTES, first * _NUM_BYTES)
                assert len(raw) == (last - first) * _NUM_BYTES, "the file is shorter than what was written"
                found.append(_cut(np.frombuffer(raw, dtype=np.int64), low, high))
        numbers = np.concatenate(found)
        numbers.sort()
        return numbers

    def marks(self) -> list[NDArray[np.int64]]:
        """Return some of the numbers, spread over all of them; none if there are few."""
        return [run.marks for run in self._runs]


def _cut(numbers: NDArray[np.int64], low: int | None, high: int | None) -> NDArray[np.int64]:
    first = 0 if low is None else np.searchsorted(numbers, low)
    last = len(numbers) if high is None else np.searchsorted(numbers, high)
    return numbers[first:last]


def windows(*every: SortedNumbers) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Yield the numbers of each in ascending order, a window at a time.

    A window holds, of each, all numbers between the same two bounds: equal numbers are never in different windows.
    Memory holds one window, whose size does not depend on how many numbers there are, unless one occurs that often.
    """
    marks = np.concatenate([np.zeros(0, dtype=np.int64), *(part for one in every for part in one.marks())])
    marks.sort()
    per_window = _WINDOW // _MARK_EVERY
    bounds = np.unique(marks[per_window::per_window]).tolist()
    for low, high in itertools.pairwise([None, *bounds, None]):
        yield tuple(one.between(low, high) for one in every)
