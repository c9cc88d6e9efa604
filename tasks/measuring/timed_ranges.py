"""Which ranges' rows are timed: the first range's, unless rows of another are of other lengths."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.records.arrays import read_parts

_SHARE_APART = 0.05
"""Of the mean length, or of the root of the mean square, which attention goes by."""


def select_timed_ranges(slices: Path, ranges: Sequence[str], *, seq_len: int, least_rows: int) -> list[str]:
    """Return the first range if the rows of all others, cut to `seq_len`, are about as long, else all ranges.

    So one more range of the same kind measures nothing again. A range with fewer than `least_rows` makes no full step
    and is left out, unless it is the first. Rows without lengths are all alike.
    """
    first, *others = ranges
    full = [name for name in others if _count_rows(slices / name) >= least_rows]
    if not (slices / first / "offsets.npy").exists():
        return [first]
    wanted = _compute_mean_lengths(slices / first, seq_len)
    apart = [np.abs(_compute_mean_lengths(slices / name, seq_len) / wanted - 1).max() for name in full]
    return [first, *full] if max(apart, default=0.0) > _SHARE_APART else [first]


def _count_rows(folder: Path) -> int:
    return sum(len(part) for part in read_parts(folder / "row_ids.npy"))


def _compute_mean_lengths(folder: Path, seq_len: int) -> np.ndarray:
    """Return the mean length of the rows, and the root of the mean square."""
    sums, before = np.zeros(3), np.zeros(0, dtype=np.int64)
    for part in read_parts(folder / "offsets.npy"):
        lengths = np.minimum(np.diff(np.concatenate([before, part])), seq_len).astype(np.float64)
        sums += [len(lengths), lengths.sum(), np.square(lengths).sum()]
        before = part[-1:].astype(np.int64)
    return np.array([sums[1] / sums[0], np.sqrt(sums[2] / sums[0])])
