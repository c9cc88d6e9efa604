"""Numbers in ascending order, more of them than memory should hold: sorted runs wait in a file without a name."""

import itertools
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tasks.process.failure import ResourceError

Sorted = NDArray[np.int64]
_RUN = 2**16
"""Numbers that are sorted in memory at once: 512 KiB."""
_MARK_EVERY = 2**8
_FOLDER = Path(".work")
"""Below the project, where files that are not kept are: /tmp is memory on some machines."""
_WINDOW = 2**16
"""About how many numbers a window has, of all that are compared."""
_NUM_BYTES = 8


class SortedNumbers:
    """Whole numbers of up to 64 bits with sign, each as often as it was added; `read_windows` gives them in order."""

    def __init__(self, parts: Iterable[NDArray[np.integer]] = ()) -> None:
        self._waiting = array("q")
        self._file: IO[bytes] | None = None
        self._num_runs = 0
        self.marks: list[Sorted] = [np.zeros(0, dtype=np.int64)]
        """Some of the numbers, spread over all of them; none if there are few."""
        for part in parts:
            self.extend(part)

    def __len__(self) -> int:
        return self._num_runs * _RUN + len(self._waiting)

    def add(self, number: int) -> None:
        """Take one number."""
        self._waiting.append(number)
        self._file_runs()

    def extend(self, numbers: NDArray[np.integer]) -> None:
        """Take all numbers of an array."""
        self._waiting.frombytes(numbers.astype(np.int64).tobytes())
        self._file_runs()

    def _file_runs(self) -> None:
        while len(self._waiting) >= _RUN:
            run = np.sort(self._waiting[:_RUN])
            try:
                if self._file is None:
                    _FOLDER.mkdir(exist_ok=True)
                    self._file = tempfile.TemporaryFile(dir=_FOLDER)  # noqa: SIM115  closed with this object
                    weakref.finalize(self, self._file.close)
                self._file.write(run.data)
                self._file.flush()
            except OSError as error:
                raise ResourceError(
                    f"{_FOLDER.resolve()}: {error.strerror}; numbers are sorted there, {_NUM_BYTES} bytes each; make "
                    "room, or make it writable"
                ) from None
            self.marks.append(run[::_MARK_EVERY].copy())
            self._num_runs += 1
            del self._waiting[:_RUN]

    def read_spans(self, bounds: Sorted) -> Iterator[Sorted]:
        """Yield the numbers below the first of the ascending bounds, from each to below the next, and from the last on.

        Each time in ascending order.
        """
        waiting = np.sort(np.array(self._waiting, dtype=np.int64))
        runs = (self._read(run, 0, _RUN) for run in range(self._num_runs))
        cuts = np.array(
            [
                np.array([0, *np.searchsorted(run, bounds), len(run)], dtype=np.int32)
                for run in itertools.chain(runs, [waiting])
            ]
        )
        for first, last in itertools.pairwise(column.tolist() for column in cuts.T):
            parts = [self._read(run, first[run], last[run]) for run in range(self._num_runs) if first[run] < last[run]]
            yield np.sort(np.concatenate([*parts, waiting[first[-1] : last[-1]]]))

    def _read(self, run: int, first: int, last: int) -> Sorted:
        assert self._file is not None
        raw = os.pread(self._file.fileno(), (last - first) * _NUM_BYTES, (run * _RUN + first) * _NUM_BYTES)
        assert len(raw) == (last - first) * _NUM_BYTES, "the file is shorter than what was written"
        return np.frombuffer(raw, dtype=np.int64)


def read_windows(*every: SortedNumbers) -> Iterator[tuple[Sorted, ...]]:
    """Yield the numbers of each in ascending order, a window at a time.

    A window holds, of each, all numbers between the same two bounds: equal numbers are never in different windows.
    Memory holds one window, whose size does not depend on how many numbers there are, unless one occurs that often.
    """
    marks = np.sort(np.concatenate([part for numbers in every for part in numbers.marks]))
    per_window = _WINDOW // _MARK_EVERY
    bounds = np.unique(marks[per_window::per_window])
    yield from zip(*(numbers.read_spans(bounds) for numbers in every), strict=True)
