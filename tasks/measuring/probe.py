"""What a prediction is made from, as one record: the parts of one rank's step (training/probing/parts.py), what several
ranks cost each other (tasks/measuring/paired.py) and their link (training/probing/sweep.py).

Figures with noise are kept as their repeats, so that a prediction can tell how far to trust itself. Seconds and ratios
of a micro-batch are those of the mean one of a step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from tasks.measuring.paired import PairedParts, Repeats, make_repeats
from tasks.strategies import count_shares
from tasks.strategies.communication import find_communication


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Bytes that can be exchanged from one moment on: a parameter's, or a bucket's once its last parameter is ready."""

    num_bytes: float
    """What the link carries."""
    ready: float
    """Share of the backward after which they are ready, 0..1."""


@dataclass(frozen=True, kw_only=True)
class Swept:
    """Exchanges of one kind and size."""

    num_bytes: float
    """Size of the whole tensor, which of a gather is what every rank has in the end."""
    seconds: Repeats
    """Of the slowest rank, by repeat."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The parts of a step and of its communication, measured one by one."""

    strategy: str
    """How the update is computed on several ranks; it has a file in tasks/strategies/communication/."""
    forward_seconds: Repeats
    """One micro-batch, one rank alone."""
    backward_seconds: Repeats
    """The same."""
    optimizer_seconds: Repeats
    """One update, clipping included, one rank alone."""
    fixed_seconds: Mapping[int, Repeats]
    """Number of ranks, 1 among them -> what a rank's step takes beside its micro-batches and its update."""
    micro_batches: tuple[float, ...]
    """Work of each micro-batch of one rank's step, longest first; their mean is 1."""
    gradients: tuple[Gradient, ...]
    """One per parameter, in the order in which they become ready."""
    buckets: tuple[Gradient, ...]
    """How they are exchanged, in the order of the exchange."""
    links: Mapping[str, Mapping[int, tuple[Swept, ...]]]
    """Kind of exchange -> number of ranks -> the sweep, by ascending size."""
    contention: Mapping[int, Repeats]
    """Number of ranks -> seconds of a step while all run without exchanging anything / while one runs alone."""
    in_flight_slowdown: Repeats = (1.0,)
    """Seconds of computing while an all-reduce is in flight / seconds without."""
    wrapper_seconds: Repeats = (0.0,)
    """What the wrapper costs per step when it exchanges nothing; taken to be the same for each bucket."""
    copy_seconds: Mapping[int, Repeats] = field(default_factory=dict)
    """Number of ranks -> what copying a micro-batch to the device takes of the computation's time."""
    spread_seconds: Mapping[int, Repeats] = field(default_factory=dict)
    """Number of ranks -> standard deviation of a rank's micro-batch against the other ranks'."""
    scaling: Literal["strong", "weak"] = "strong"
    """strong: the micro-batches are shared out over the ranks; weak: every rank has as many as one has alone."""
    ranks_per_machine: int | None = None
    """Ranks that share a machine at most; beyond, contention grows no more. None: it is not known, and it grows."""
    is_16_bit: bool = False
    """Whether gradients are exchanged in 16 bits."""
    link_only: frozenset[int] = frozenset()
    """Those numbers of ranks in `links` that ran the sweeps and nothing else."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the strategy."""
    exchange: Mapping[str, Any] = field(default_factory=dict)
    """How the exchange is laid out on the most ranks that were measured, as they said."""
    overlaps: bool = False
    """Whether weights are gathered while the device computes."""

    @property
    def swept_world_sizes(self) -> list[int]:
        """Numbers of ranks whose link was measured."""
        return sorted({n for sweeps in self.links.values() for n in sweeps})

    @property
    def measured_world_sizes(self) -> list[int]:
        """Numbers of ranks whose steps and communication were measured."""
        return [n for n in self.swept_world_sizes if n not in self.link_only]

    def explain_unknown(self, world_size: int) -> str | None:
        """Return why nothing can be said of so many ranks, a whole sentence; None where something can."""
        busy, shares = len(self.micro_batches), self.count_shares(world_size)
        if self.scaling == "strong" and shares > busy:
            return (
                f"From {busy + 1} {'ranks' if shares == world_size else 'replicas'} on nothing is predicted: in strong "
                f"scaling the number of micro-batches per step stays {busy}, and a rank would have none. A change that "
                "makes more of them moves that number."
            )
        return find_communication(self.strategy).explain_unknown(self.options, self.exchange, world_size=world_size)

    def count_shares(self, world_size: int) -> int:
        """Return into how many shares a step's micro-batches are dealt."""
        return min(count_shares(self.strategy, world_size, self.options), world_size)

    def drop_link_only(self) -> Self:
        """Return it without the sweeps of numbers of ranks that ran nothing else."""
        links = {
            kind: {n: points for n, points in sweeps.items() if n not in self.link_only}
            for kind, sweeps in self.links.items()
        }
        return replace(self, links=links, link_only=frozenset())

    def list_busiest_works(self, num_shares: int, world_size: int) -> tuple[float, ...]:
        """Return the work of each micro-batch of the busiest of so many shares, that of its last one first.

        Micro-batches are dealt as training/data/plan.py deals them; what does not divide is one more for some.
        """
        works = np.repeat(self.micro_batches, world_size if self.scaling == "weak" else 1)
        dealt = np.zeros((-(-len(works) // num_shares), num_shares))
        dealt.flat[: len(works)] = works
        dealt[1::2] = dealt[1::2, ::-1]
        mine = dealt[:, int(dealt.sum(axis=0).argmax())]
        return tuple(mine[mine > 0].tolist())

    def scale_gradient_bytes(self, factor: float) -> Self:
        """Return it with gradients of other precision."""

        def scale(parts: tuple[Gradient, ...]) -> tuple[Gradient, ...]:
            return tuple(replace(part, num_bytes=part.num_bytes * factor) for part in parts)

        return replace(self, gradients=scale(self.gradients), buckets=scale(self.buckets))

    def scale_link_seconds(self, factor: float) -> Self:
        """Return it with every exchange taking that many times as long."""
        links = {
            kind: {
                n: tuple(replace(part, seconds=tuple(one * factor for one in part.seconds)) for part in points)
                for n, points in sweeps.items()
            }
            for kind, sweeps in self.links.items()
        }
        return replace(self, links=links)

    def scale_accumulation(self, factor: int) -> Self:
        """Return it with that many times as many micro-batches in a step."""
        return replace(self, micro_batches=tuple(np.repeat(self.micro_batches, factor).tolist()))

    def rebuild_buckets(self, most: float) -> Self:
        """Return it with buckets that are closed once they hold so many bytes.

        A wrapper's cost is per bucket.
        """
        buckets = make_buckets(self.gradients, most)
        wrapper = tuple(one * len(buckets) / len(self.buckets) for one in self.wrapper_seconds)
        return replace(self, buckets=buckets, wrapper_seconds=wrapper)


def compute_expected_maximum(num_normals: int) -> float:
    """Return the expected maximum of so many independent standard normals; 0 of one."""
    most = 10.0
    grid = np.linspace(-most, most, 4001)
    # A variable that is never above `most` has a mean of that - the integral of its distribution.
    distribution = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in grid]) ** num_normals
    return most - float(np.trapezoid(distribution, grid))


def make_buckets(gradients: Sequence[Gradient], most: float) -> tuple[Gradient, ...]:
    """Return the buckets that DDP makes with an explicit `bucket_mib`: each ends with the parameter that fills it."""
    buckets, num_bytes = [], 0.0
    for index, part in enumerate(gradients):
        num_bytes += part.num_bytes
        if num_bytes >= most or index == len(gradients) - 1:
            buckets.append(Gradient(num_bytes=num_bytes, ready=part.ready))
            num_bytes = 0.0
    return tuple(buckets)


def make_probe(
    alone: Mapping[str, Any],
    sweeps: Mapping[str, Mapping[int, Mapping[str, Any]]],
    *,
    strategy: str,
    buckets: Sequence[Mapping[str, Any]],
    paired: Mapping[int, PairedParts],
    baseline_seconds: Sequence[float] | None = None,
    copy_seconds: Mapping[int, Sequence[float]] | None = None,
    in_flight: Mapping[str, Any] | None = None,
    link_bytes_per_byte: float = 1.0,
    scaling: Literal["strong", "weak"] = "strong",
    ranks_per_machine: int | None = None,
    is_16_bit: bool = False,
    options: Mapping[str, Any] | None = None,
    exchange: Mapping[str, Any] | None = None,
    overlaps: bool = False,
) -> Probe:
    """Return the probe from what the ranks measured.

    `alone`: probe_compute's answer; its parts are scaled so that together they are as long as the baseline's step in
    the blocks, `baseline_seconds`. `sweeps`: kind of exchange -> number of ranks -> sweep_exchange's answer; `buckets`:
    probe_buckets' answer; `paired`, `copy_seconds`: by number of ranks, of whole steps; `in_flight`:
    probe_slowdown_in_flight's, without repeats where there is none. The link carries `link_bytes_per_byte` bytes for
    each byte of gradient; its sweep is in bytes of the link.
    """
    parts = _scale_parts(alone, baseline_seconds)
    forward, backward = parts["forward_seconds"], parts["backward_seconds"]
    plain = Probe(
        strategy=strategy,
        forward_seconds=make_repeats(forward.mean(axis=1)),
        backward_seconds=make_repeats(backward.mean(axis=1)),
        optimizer_seconds=make_repeats(parts["optimizer_seconds"]),
        fixed_seconds={1: make_repeats(parts["fixed_seconds"])},
        micro_batches=_estimate_works(forward + backward),
        gradients=_make_gradients(alone["gradients"], link_bytes_per_byte),
        buckets=_make_gradients(buckets, link_bytes_per_byte),
        links={
            kind: {
                n: tuple(
                    Swept(num_bytes=point["num_bytes"], seconds=make_repeats(point["seconds"]))
                    for point in sweep["points"]
                )
                for n, sweep in of_kind.items()
            }
            for kind, of_kind in sweeps.items()
        },
        contention={n: one.contention for n, one in paired.items()},
        in_flight_slowdown=_compute_slowdown(in_flight),
        wrapper_seconds=paired[max(paired)].wrapper_seconds,
        scaling=scaling,
        ranks_per_machine=ranks_per_machine,
        is_16_bit=is_16_bit,
        link_only=frozenset({n for of_kind in sweeps.values() for n in of_kind} - paired.keys()),
        options=options or {},
        exchange=exchange or {},
        overlaps=overlaps,
    )
    return replace(
        plain,
        fixed_seconds=dict(plain.fixed_seconds) | {n: _compute_fixed(plain, one) for n, one in paired.items()},
        spread_seconds={n: _compute_spread(plain, n, one) for n, one in paired.items()},
        copy_seconds={
            n: tuple(one / len(plain.list_busiest_works(n, n)) for one in repeats)
            for n, repeats in (copy_seconds or {}).items()
        },
    )


def _scale_parts(alone: Mapping[str, Any], baseline_seconds: Sequence[float] | None) -> dict[str, np.ndarray]:
    """Return the seconds of each part, scaled so that they add up to the baseline's step."""
    parts = {
        name: np.asarray(alone[name], dtype=float)
        for name in ("forward_seconds", "backward_seconds", "optimizer_seconds", "fixed_seconds")
    }
    if baseline_seconds is None:
        return parts
    works = (parts["forward_seconds"] + parts["backward_seconds"]).sum(axis=1)
    # Below 0 where timing the parts one by one costs more: then they are too long, and nothing is fixed.
    fixed = max(float(np.median(parts["fixed_seconds"])), 0.0)
    factor = np.median(baseline_seconds) / (np.median(works) + np.median(parts["optimizer_seconds"]) + fixed)
    return {name: seconds * factor for name, seconds in parts.items()}


def _compute_fixed(probe: Probe, paired: PairedParts) -> Repeats:
    """Return, by turn, what a rank's step takes beside its share of the micro-batches and the whole update."""
    fixed, optimizer = (max(float(np.median(one)), 0.0) for one in (probe.fixed_seconds[1], probe.optimizer_seconds))
    own = paired.share * fixed - (1 - paired.share) * optimizer
    return tuple(one + own for one in paired.beyond_share_seconds)


def _compute_spread(probe: Probe, world_size: int, paired: PairedParts) -> Repeats:
    """Return, by turn, the standard deviation per micro-batch that makes the latest rank as late as it was.

    That it has more micro-batches, or longer ones, than an even share is no spread.
    """
    works = probe.list_busiest_works(world_size, world_size)
    even = sum(probe.micro_batches) * (1.0 if probe.scaling == "weak" else 1 / world_size)
    micro_batch = np.median(probe.forward_seconds) + np.median(probe.backward_seconds)
    uneven = float((sum(works) - even) * micro_batch * np.median(paired.contention))
    apart = compute_expected_maximum(world_size) * math.sqrt(len(works))
    return tuple((one - uneven) / apart for one in paired.straggler_seconds)


def _make_gradients(parts: Sequence[Mapping[str, Any]], factor: float) -> tuple[Gradient, ...]:
    return tuple(Gradient(num_bytes=part["num_bytes"] * factor, ready=part["ready"]) for part in parts)


def _estimate_works(seconds: np.ndarray) -> tuple[float, ...]:
    """Return the micro-batches' work from (num_repeats, num_micro_batches) seconds, in the order of a step.

    A step runs its longest micro-batch last. What differs by no more than the repeats do is noise, which the longest of
    several would be chosen by; so differences are shrunk by its share in them (James and Stein 1961).
    """
    medians = np.median(seconds, axis=0)[::-1] / np.median(seconds, axis=0).mean()
    seen = float(medians.var())
    noise = float((seconds.std(axis=0) / seconds.mean()).mean() ** 2) * np.pi / 2 / len(seconds)
    kept = max(0.0, 1 - noise / seen) if seen > 0 else 0.0
    return tuple((1 + kept * (medians - 1)).tolist())


def _compute_slowdown(in_flight: Mapping[str, Any] | None) -> Repeats:
    if in_flight is None or np.size(in_flight["alone_seconds"]) == 0:
        return (1.0,)
    alone = np.asarray(in_flight["alone_seconds"]).mean(axis=0)
    return make_repeats(np.asarray(in_flight["in_flight_seconds"]).mean(axis=0) / alone)
