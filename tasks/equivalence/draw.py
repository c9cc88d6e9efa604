"""Which updates of a cell's training are computed a second time: drawn at random, before it begins."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_FEWEST_OF_SEGMENT, _FEWEST_BY_CHANCE = 2, 4


class Drawn(NamedTuple):
    """Steps of a segment, from 1."""

    required: list[int]
    """Of them one that chance alone chose, two in all, the first and the last of the run, one of a partial batch; as
    many by chance in the whole run as see a defect in a quarter of its steps more often than not."""
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
    by_chance = [1] * len(names)
    by_chance[int(np.argmax(num_steps))] += max(min(_FEWEST_BY_CHANCE, updates - 2) - len(names), 0)
    fewest = [max(_FEWEST_OF_SEGMENT, len(set(steps)) + more) for steps, more in zip(fixed, by_chance, strict=True)]
    ideal = np.array(num_steps) * updates / sum(num_steps)
    shares = np.maximum(np.floor(ideal).astype(int), fewest)
    for place in np.argsort(np.floor(ideal) - ideal, kind="stable")[: max(updates - int(shares.sum()), 0)]:
        shares[place] += 1
    for place, (name, size, share) in enumerate(zip(names, num_steps, shares.tolist(), strict=True)):
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        order = (np.random.default_rng([seed, number]).permutation(size) + 1).tolist()
        # A first or last step, which may be checked in any case, is none of those that chance has to choose.
        between = [step for step in order if (place > 0 or step > 1) and step < size][: by_chance[place]]
        chosen = list(dict.fromkeys([*fixed[place], *between, *order]))[:share]
        results.append(Drawn(sorted(chosen[: fewest[place]]), sorted(chosen[fewest[place] :])))
    return results
