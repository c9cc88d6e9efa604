"""Which updates of a cell's training are computed a second time: drawn at random, before it begins."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_FEWEST_OF_SEGMENT = 2


class Drawn(NamedTuple):
    """Steps of a segment, from 1."""

    required: list[int]
    """Of them one that chance alone chose, two in all, the first and the last of the run, one of a partial batch."""
    optional: list[int]
    """The others, left out where checking takes long."""


def draw_updates(
    names: Sequence[str], num_steps: Sequence[int], *, updates: int, seed: int, are_partial: Sequence[bool] = ()
) -> list[Drawn]:
    """Return which steps of each segment are checked, so many in all, in shares of the segments' steps.

    The first and the last of the run are among them: what goes wrong somewhere and stays wrong is seen at the end. So
    is the end of the first segment whose last batch is partial, which goes wrong by itself; `are_partial`: of each. The
    others come in the order of a permutation that the seed and the segment's name decide, so that one more segment
    leaves the draws of those before it.
    """
    if not updates:
        return [Drawn([], []) for _ in names]
    last, results = len(names) - 1, list[Drawn]()
    ends = {last, *[place for place, is_partial in enumerate(are_partial) if is_partial][:1]}
    fixed = [[1] * (place == 0) + [size] * (place in ends) for place, size in enumerate(num_steps)]
    # Where checks take long these are all that is made: not those alone that anybody knows beforehand.
    fewest = [max(_FEWEST_OF_SEGMENT, len(set(steps)) + 1) for steps in fixed]
    ideal = np.array(num_steps) * updates / sum(num_steps)
    shares = np.maximum(np.floor(ideal).astype(int), fewest)
    for place in np.argsort(np.floor(ideal) - ideal, kind="stable")[: max(updates - int(shares.sum()), 0)]:
        shares[place] += 1
    for place, (name, size, share) in enumerate(zip(names, num_steps, shares.tolist(), strict=True)):
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        order = (np.random.default_rng([seed, number]).permutation(size) + 1).tolist()
        chosen = list(dict.fromkeys([*fixed[place], *order]))[:share]
        results.append(Drawn(sorted(chosen[: fewest[place]]), sorted(chosen[fewest[place] :])))
    return results
