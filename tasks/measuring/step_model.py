"""The seconds of a step at any number of ranks, from its parts; drawn many times.

What is exchanged while the last backward goes on, and what is left when it is over, the strategy's own model says.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tasks.measuring.link import Link
from tasks.measuring.paired import Repeats
from tasks.measuring.probe import Probe, compute_expected_maximum
from tasks.strategies.communication import Draws, SpreadStep, find_communication

_GROWTH = (0.0, 1.0)
"""Power of the hops with which a link's latency grows, where one number of ranks was measured: any as likely."""


def draw_ratios(
    probe: Probe, world_sizes: Sequence[int], *, seed: int, num_draws: int, against: Probe | None = None
) -> dict[int, Draws]:
    """Return the speedups: of the medians, then of repeats drawn anew, of which a seed draws the same each time.

    `against`: whose step of one rank they are counted against, per micro-batch; the probe's own if None.
    """
    drawn = StepModel(probe, np.random.default_rng(seed), num_draws)
    alone = drawn.step_seconds(1)
    if against is not None:
        work = len(probe.micro_batches) / len(against.micro_batches)
        alone = work * StepModel(against, np.random.default_rng(seed), num_draws).step_seconds(1)
    return {n: np.asarray((n if probe.scaling == "weak" else 1) * alone / drawn.step_seconds(n)) for n in world_sizes}


class StepModel:
    """The probe's figures: first as the medians of their repeats, then as the medians of repeats drawn anew."""

    def __init__(self, probe: Probe, random: np.random.Generator, num_draws: int) -> None:
        def draw(repeats: Repeats) -> Draws:
            values = np.array(repeats)
            picked = values[random.integers(len(values), size=(num_draws, len(values)))]
            return np.concatenate([[np.median(values)], np.median(picked, axis=1)])

        self._probe = probe
        self._forward, self._backward = draw(probe.forward_seconds), draw(probe.backward_seconds)
        self._optimizer = draw(probe.optimizer_seconds)
        self._copy = {n: np.maximum(draw(repeats), 0.0) for n, repeats in probe.copy_seconds.items()}
        self._fixed = {n: np.maximum(draw(repeats), 0.0) for n, repeats in probe.fixed_seconds.items()}
        self._spread = {n: np.maximum(draw(repeats), 0.0) for n, repeats in probe.spread_seconds.items()}
        self._slowdown = np.maximum(draw(probe.in_flight_slowdown), 1.0)
        self._per_bucket = np.maximum(draw(probe.wrapper_seconds), 0.0) / max(len(probe.buckets), 1)
        self._contention = {n: draw(repeats) for n, repeats in probe.contention.items()}
        growth: Draws | None = None
        self._links: dict[str, Link] = {}
        for kind, sweeps in probe.links.items():
            drawn = {n: np.stack([draw(one.seconds) for one in points], axis=1) for n, points in sweeps.items()}
            if growth is None:
                growth = np.concatenate([[np.mean(_GROWTH)], random.uniform(*_GROWTH, size=num_draws)])
            self._links[kind] = Link(sweeps, drawn, growth=growth, kind=kind)

    def step_seconds(self, world_size: int) -> Draws:
        """Return the seconds of one optimizer step."""
        works = self._probe.list_busiest_works(self._probe.count_shares(world_size), world_size)
        slower = self._compute_contention(world_size)
        copy = len(works) * _select_nearest(self._copy, world_size)
        beside = slower * _select_nearest(self._fixed, world_size) + copy
        forward, backward, optimizer = slower * self._forward, slower * self._backward, slower * self._optimizer
        if world_size == 1:
            return np.asarray(sum(works) * (forward + backward) + optimizer + beside)
        step = SpreadStep(
            world_size=world_size, works=works, forward=forward, backward=backward, optimizer=optimizer,
            buckets=self._probe.buckets, wrapper_seconds=self._per_bucket, slowdown=self._slowdown,
            overlaps=self._probe.overlaps, link_seconds=self._compute_link_seconds,
            options=self._probe.options, exchange=self._probe.exchange,
        )  # fmt: skip
        straggler = (
            math.sqrt(len(works)) * compute_expected_maximum(world_size) * _select_nearest(self._spread, world_size)
        )
        passes = find_communication(self._probe.strategy).compute_step_seconds(step)
        return np.asarray(passes + beside + straggler)

    def _compute_link_seconds(self, kind: str, num_bytes: float, num_ranks: int) -> Draws:
        if num_ranks == 1:
            return np.zeros_like(self._forward)
        return self._links[kind].seconds(num_bytes, num_ranks)

    def _compute_contention(self, world_size: int) -> Draws:
        """Return the contention: per further rank as much as at the nearest numbers measured, never below 1."""
        measured = self._contention
        if world_size == 1 or not measured:
            return np.ones_like(self._forward)
        most = self._probe.ranks_per_machine
        ranks = min(world_size, max(most, 1)) if most is not None else world_size
        known = sorted(measured)
        if ranks > known[-1]:
            grown = (measured[known[-1]] - 1) * (ranks - 1) / (known[-1] - 1)
            return np.maximum(1 + grown, 1.0)
        numbers = [1, *known]
        table = np.stack([np.ones_like(self._forward), *(measured[n] for n in known)])
        upper = int(np.searchsorted(numbers, ranks))
        if numbers[upper] == ranks:
            return np.maximum(table[upper], 1.0)
        part = (ranks - numbers[upper - 1]) / (numbers[upper] - numbers[upper - 1])
        return np.maximum((1 - part) * table[upper - 1] + part * table[upper], 1.0)


def _select_nearest(measured: Mapping[int, Draws], world_size: int) -> Draws:
    """Return what was measured at the number of ranks next to it, by their ratio; 0 if nothing was."""
    if not measured:
        return np.zeros(1)
    return measured[min(measured, key=lambda n: abs(math.log(n / world_size)))]
