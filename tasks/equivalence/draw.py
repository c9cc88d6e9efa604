"""Which updates of a cell's training are computed a second time: drawn at random, before it begins."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_FEWEST_OF_SEGMENT = 2


class Drawn(NamedTuple):
    """Steps of a segment, from 1."""

    required: list[int]
    """Of them one that chance alone chose, two in all, the first of the run, the last of the run."""
    optional: list[int]
    """The others, left out where checking takes long."""


def draw_updates(names: Sequence[str], num_steps: Sequence[int], *, updates: int, seed: int) -> list[Drawn]:
    """Return which steps of each segment are checked, so many in all, in shares of the segments' steps.

    The first and the last of the run are among them: what goes wrong somewhere and stays wrong is seen at the end, and
    the last batch is often a partial one. The others come in the order of a permutation that the seed and the segment's
    name decide, so that one more segment leaves the draws of those before it.
    """
    if not updates:
        return [Drawn([], []) for _ in names]
    total, last, results = sum(num_steps), len(names) - 1, list[Drawn]()
    ideal = np.array(num_steps) * updates / total
    shares = np.maximum(np.floor(ideal).astype(int), _FEWEST_OF_SEGMENT)
    for place in np.argsort(np.floor(ideal) - ideal, kind="stable")[: max(updates - int(shares.sum()), 0)]:
        shares[place] += 1
    for place, (name, size, share) in enumerate(zip(names, num_steps, shares.tolist(), strict=True)):
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        order = (np.random.default_rng([seed, number]).permutation(size) + 1).tolist()
        fixed = [1] * (place == 0) + [size] * (place == last)
        # Where checks take long these are all that is made: not those alone that anybody knows beforehand.
        fewest = max(_FEWEST_OF_SEGMENT, len(set(fixed)) + 1)
        chosen = list(dict.fromkeys([*fixed, *order]))[: max(share, fewest)]
        results.append(Drawn(sorted(chosen[:fewest]), sorted(chosen[fewest:])))
    return results
