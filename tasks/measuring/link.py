"""The seconds of an exchange for any number of bytes and of ranks, from sweeps at a few."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.measuring.probe import Swept
from tasks.records.predicted import LinkSpeed
from tasks.strategies.communication import Draws

_RING: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "send": lambda n: 1.0,
}
"""Kind of exchange -> how often each byte of the whole tensor goes over one link of a ring of n ranks."""


def compute_link_speed(sweep: Mapping[str, Any]) -> LinkSpeed | None:
    """Return what the largest exchange of a sweep (training/probing/sweep.py) came to; None where it has none.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    if not sweep["points"]:
        return None
    largest, world_size = sweep["points"][-1], sweep["world_size"]
    over_a_link = _RING[sweep["kind"]](world_size) * largest["num_bytes"]
    return LinkSpeed(
        world_size=world_size,
        kind=sweep["kind"],
        backend=sweep["backend"],
        num_bytes=largest["num_bytes"],
        seconds=largest["median_seconds"],
        bus_gb_per_second=over_a_link / largest["median_seconds"] / 1e9,
        is_slept_for=sweep["is_slept_for"],
    )


class Link:
    """Sweeps of one kind of exchange, drawn many times.

    At a measured number of ranks: between two measured sizes a power law, beyond the largest proportional to the bytes,
    below the smallest what that takes. At another: scaled by the terms of a ring, fitted to all sweeps. One number of
    ranks cannot tell what is paid once per exchange from what is paid per hop: what does not grow with the bytes then
    grows with the number of hops to the power of `growth`, from 0 (once; a switch that adds up) to 1 (every hop).
    """

    def __init__(
        self,
        sweeps: Mapping[int, Sequence[Swept]],
        drawn: Mapping[int, np.ndarray],
        *,
        growth: Draws,
        kind: str = "all_reduce",
    ) -> None:
        """`drawn`: number of ranks -> (num_draws, num_sizes) seconds; `growth`: (num_draws,).

        Raises ValueError for a sweep without a size.
        """
        self._of_ring = _RING[kind]
        empty = [world_size for world_size, points in sweeps.items() if not points]
        if empty or not sweeps:
            raise ValueError(f"no {kind} was measured at {empty or 'any'} ranks; needed: at least one size each")
        self._log_bytes = {n: np.log([point.num_bytes for point in points]) for n, points in sweeps.items()}
        # More bytes never take less time; where noise says so, the larger figure stands.
        self._log_seconds = {n: np.log(np.maximum.accumulate(drawn[n], axis=1)) for n in sweeps}
        # What goes to a neighbour goes over one hop, however many ranks there are.
        self._has_hops = kind != "send"
        self._terms = _fit_ring(
            sweeps, drawn, self._of_ring, (0, 1, 2) if len(sweeps) > 1 and self._has_hops else (0, 2)
        )
        self._lone = next(iter(sweeps)) if len(sweeps) == 1 and self._has_hops else None
        self._growth = growth

    def seconds(self, num_bytes: float, world_size: int) -> Draws:
        """Return the seconds of one; 0 on one rank."""
        if world_size == 1:
            return np.zeros(len(self._terms))
        if world_size in self._log_seconds:
            return np.exp(self._interpolate_sweep(num_bytes, world_size))
        measured = sorted(self._log_seconds)
        # By how much each sweep is above the ring at this size, which fades from one to the next.
        above = np.array(
            [self._interpolate_sweep(num_bytes, n) - np.log(self._compute_ring_seconds(num_bytes, n)) for n in measured]
        )
        position = np.interp(np.log(world_size), np.log(measured), np.arange(len(measured)))
        lower, part = int(position), position - int(position)
        upper = min(lower + 1, len(measured) - 1)
        correction = (1 - part) * above[lower] + part * above[upper]
        return np.asarray(self._compute_ring_seconds(num_bytes, world_size) * np.exp(correction))

    def _interpolate_sweep(self, num_bytes: float, world_size: int) -> Draws:
        sizes, seconds = self._log_bytes[world_size], self._log_seconds[world_size]
        size = np.log(num_bytes)
        if size <= sizes[0]:
            return np.asarray(seconds[:, 0])
        if size >= sizes[-1]:
            return np.asarray(seconds[:, -1] + size - sizes[-1])
        upper = int(np.searchsorted(sizes, size))
        part = (size - sizes[upper - 1]) / (sizes[upper] - sizes[upper - 1])
        return np.asarray((1 - part) * seconds[:, upper - 1] + part * seconds[:, upper])

    def _compute_ring_seconds(self, num_bytes: float, world_size: int) -> Draws:
        constant, hops, per_byte = _compute_terms(num_bytes, world_size, self._of_ring)
        once = np.full(len(self._terms), constant)
        if self._lone is not None:
            once = ((world_size - 1) / (self._lone - 1)) ** self._growth
        return np.asarray(self._terms[:, 0] * once + self._terms[:, 1] * hops + self._terms[:, 2] * per_byte)


def _compute_terms(num_bytes: float, world_size: int, of_ring: Callable[[int], float]) -> np.ndarray:
    """Return what the constant, the seconds per hop and the seconds per byte are multiplied by."""
    return np.array([1.0, world_size - 1, of_ring(world_size) * num_bytes])


def _fit_ring(
    sweeps: Mapping[int, Sequence[Swept]],
    drawn: Mapping[int, np.ndarray],
    of_ring: Callable[[int], float],
    usable: Sequence[int],
) -> np.ndarray:
    """Return constant, seconds per hop and seconds per byte: (num_draws, 3), none below 0.

    Least squares of relative errors, of the `usable` terms: one number of ranks cannot tell constant from hops, and all
    is then in the constant.
    """
    rows = np.array([_compute_terms(point.num_bytes, n, of_ring) for n, points in sweeps.items() for point in points])
    seconds = np.concatenate([drawn[n] for n in sweeps], axis=1)
    weights = 1 / np.median(seconds, axis=0)
    rows, wanted = rows * weights[:, None], seconds * weights
    best, least = np.zeros((len(seconds), 3)), np.full(len(seconds), np.inf)
    # Few enough terms to try every choice of those that are above 0.
    for chosen in itertools.chain.from_iterable(itertools.combinations(usable, k) for k in range(1, len(usable) + 1)):
        scale = np.linalg.norm(rows[:, chosen], axis=0)
        found = wanted @ np.linalg.pinv(rows[:, chosen] / scale).T / scale
        terms = np.zeros_like(best)
        terms[:, chosen] = found
        error = ((terms @ rows.T - wanted) ** 2).sum(axis=1)
        better = (found >= 0).all(axis=1) & (error < least)
        best[better], least[better] = terms[better], error[better]
    return best
