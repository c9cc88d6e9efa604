"""A number that tells which rows each step had; needs no torch."""

from collections.abc import Sequence

import numpy as np

_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def digest_rows(steps: Sequence[Sequence[np.ndarray]]) -> int:
    """Return a number of 64 bits for the rows of each step, whatever their order in it; of several ranks, their sum.

    Every pair of step and row is mixed (splitmix64), so that no other pairs come to the same sum by accident.
    """
    total = 0
    for step, parts in enumerate(steps, start=1):
        for rows in parts:
            mixed = rows.astype(np.uint64) + np.uint64(step << 40)
            for shift, factor in _MIX:
                mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
            total += int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
    return total % 2**64
