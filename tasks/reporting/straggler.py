"""Is one rank slower than the others, so that they wait for it in every step?"""

import numpy as np
from numpy.typing import NDArray

from tasks.records.facts import Record
from tasks.records.outputs import Steps

_STRAGGLES = 1.5
"""A rank that takes so many times as long as the others for the same work is called a straggler.

Cores and GPUs of one kind are within a few percent of each other; cores of two kinds, or one that another process
uses too, may be 1.2 to 1.4 times apart, and what they give is what the machine gives: docs/decisions.md,
"A straggler taints the speedup".
"""
_WAITING_SHARE = 0.05
"""And if the others wait for it for so large a share of the step."""
_NEARLY_ALWAYS = 1.25
"""And if it takes so many times as long in three blocks of four: moments in which a rank was put aside are fewer."""
_BLOCK_SECONDS = 0.25
"""Steps are taken together for so long, or one by one if they take longer: a busy machine deals out its cores for
shorter than that."""
_FEWEST_BLOCKS = 8
_PUT_ASIDE = 1.5
_TURNS = 20


class SlowestRank(Record):
    """The rank of a cell that takes longest for the same work, by the median over its training."""

    rank: int
    """Which one."""
    times_as_long: float
    """What it takes, over what the other ranks take (their median)."""
    waiting_share: float
    """Share of step time that the others wait for it, at least; 0 if it is no slower."""
    is_straggler: bool
    """Whether that is more than ranks on equal devices are apart."""


def find_slowest_rank(steps: Steps) -> SlowestRank | None:
    """Return the cell's slowest rank; None for a single rank, or where the ranks' own seconds are not known.

    Compared is what ranks do without waiting for each other (record/window.py), and only with what so much work
    takes in this cell: micro-batches have unequal lengths. A median over blocks of steps, so that a moment's
    interruption counts for nothing, and so does what was slow for less than half of the training. Two seconds of
    training are the least in which a straggler can be told.
    """
    own, positions = steps.rank_own_seconds, steps.rank_own_positions
    if own.shape[1] < 2 or not own.all():
        return None
    block = np.unique((np.cumsum(steps.seconds) / _BLOCK_SECONDS).astype(int), return_index=True)[1]
    # What so many positions take in this cell: a straight line through all but moments put aside. Ranks are levelled
    # for it, in turns with the line: a slow rank may have had the longer micro-batches as well.
    work, paces = positions.astype(np.float64), np.ones(own.shape[1])
    usual = _fit_line(own, work, work)
    for _ in range(_TURNS):
        ratios = own / paces / usual
        is_usual = ratios <= _PUT_ASIDE * np.median(ratios)
        usual = _fit_line((own / paces)[is_usual], work[is_usual], work)
        paces = np.median(own / usual, axis=0)
        paces /= paces.min()
    relative = np.add.reduceat(own, block) / np.add.reduceat(usual, block)
    pace = np.median(relative, axis=0)
    rank = int(np.argmax(pace))
    others = float(np.median(np.delete(pace, rank)))
    ratio = float(pace[rank]) / others
    is_steady = len(relative) >= _FEWEST_BLOCKS and np.quantile(relative[:, rank], 0.25) > _NEARLY_ALWAYS * others
    share = float((1 - 1 / ratio) * own[:, rank].sum() / steps.seconds.sum())
    return SlowestRank(
        rank=rank,
        times_as_long=ratio,
        waiting_share=min(max(share, 0.0), 1.0),
        is_straggler=bool(is_steady and ratio > _STRAGGLES and share > _WAITING_SHARE),
    )


def _fit_line(seconds: NDArray[np.float64], work: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the seconds of so much work by the straight line through what was seen, neither part of it below 0."""
    slope, fixed = np.polyfit(work.ravel(), seconds.ravel(), 1) if np.ptp(work) else (0.0, seconds.mean())
    if slope < 0:
        slope, fixed = 0.0, seconds.mean()
    elif fixed < 0:
        slope, fixed = seconds.sum() / work.sum(), 0.0
    line: NDArray[np.float64] = fixed + slope * at
    return line
