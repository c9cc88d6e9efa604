"""What a prediction is made from: the figures of training/probing/parts.py and training/probing/sweep.py as one record.

Figures with noise are kept as their repeats, so that a prediction can tell how far to trust itself. Seconds and ratios
of a micro-batch are those of the mean one of a step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

Repeats = tuple[float, ...]

_HICCUP = 4.0
"""A step whose latest rank is later than in three quarters of the steps times this had a hiccup: it is left out."""


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Bytes that can be exchanged from one moment on: a parameter's, or a bucket's once its last parameter is ready."""

    num_bytes: float
    """What the link carries."""
    ready: float
    """Share of the backward after which they are ready, 0..1."""


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """All-reduces of one size."""

    num_bytes: float
    """Size of the tensor."""
    seconds: Repeats
    """Of the slowest rank, by repeat."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The parts of a step and of its communication, measured one by one."""

    forward_seconds: Repeats
    """One micro-batch, one rank alone."""
    backward_seconds: Repeats
    """The same."""
    optimizer_seconds: Repeats
    """One update, clipping included, one rank alone."""
    fixed_seconds: Mapping[int, Repeats]
    """Number of ranks, 1 among them -> what a step takes beside its micro-batches and its update, mean over ranks."""
    micro_batches: tuple[float, ...]
    """Work of each micro-batch of one rank's step, longest first; their mean is 1."""
    gradients: tuple[Gradient, ...]
    """One per parameter, in the order in which they become ready."""
    buckets: tuple[Gradient, ...]
    """How they are exchanged, in the order of the exchange."""
    all_reduce: Mapping[int, tuple[AllReduce, ...]]
    """Number of ranks -> the sweep, by ascending size."""
    contention: Mapping[int, Repeats]
    """Number of ranks -> seconds of forward and backward while all run without exchanging anything / seconds alone."""
    update_contention: Mapping[int, Repeats]
    """The same of the update."""
    in_flight_slowdown: Repeats = (1.0,)
    """Seconds of computing while an all-reduce is in flight / seconds without."""
    wrapper_seconds: Repeats = (0.0,)
    """What the wrapper costs per step when it exchanges nothing; taken to be the same for each bucket."""
    copy_seconds: Mapping[int, Repeats] = field(default_factory=dict)
    """Number of ranks -> what copying a micro-batch to the device takes of the computation's time."""
    spread_seconds: Mapping[int, Repeats] = field(default_factory=dict)
    """Number of ranks -> standard deviation of a rank's micro-batch against the other ranks', from each step."""
    scaling: Literal["strong", "weak"] = "strong"
    """strong: the micro-batches are shared out over the ranks; weak: every rank has as many as one has alone."""
    ranks_per_machine: int | None = None
    """Ranks that share a machine at most; beyond, contention grows no more. None: it is not known, and it grows."""
    is_16_bit: bool = False
    """Whether gradients are exchanged in 16 bits."""
    link_only: frozenset[int] = frozenset()
    """Those numbers of ranks in `all_reduce` that ran the sweep and nothing else."""

    @property
    def measured_world_sizes(self) -> list[int]:
        """Numbers of ranks whose steps and communication were measured."""
        return sorted(self.all_reduce.keys() - self.link_only)

    def drop_link_only(self) -> Self:
        """Return it without the sweeps of numbers of ranks that ran nothing else."""
        swept = {n: points for n, points in self.all_reduce.items() if n not in self.link_only}
        return replace(self, all_reduce=swept, link_only=frozenset())

    def compute_busiest_share(self, world_size: int) -> tuple[int, float, float]:
        """Return the busiest rank's part of a step: number of micro-batches, their work, the work of its last one.

        Micro-batches are dealt as training/data/plan.py deals them; what does not divide is one more for some.
        """
        works = np.repeat(self.micro_batches, world_size if self.scaling == "weak" else 1)
        num_turns = -(-len(works) // world_size)
        dealt = np.zeros((num_turns, world_size))
        dealt.flat[: len(works)] = works
        dealt[1::2] = dealt[1::2, ::-1]
        busiest = int(dealt.sum(axis=0).argmax())
        mine = dealt[:, busiest]
        return int((mine > 0).sum()), float(mine.sum()), float(mine[0])

    def scale_gradient_bytes(self, factor: float) -> Self:
        """Return it with gradients of other precision."""

        def scale(parts: tuple[Gradient, ...]) -> tuple[Gradient, ...]:
            return tuple(replace(part, num_bytes=part.num_bytes * factor) for part in parts)

        return replace(self, gradients=scale(self.gradients), buckets=scale(self.buckets))

    def scale_link_seconds(self, factor: float) -> Self:
        """Return it with every all-reduce taking that many times as long."""
        swept = {
            world_size: tuple(replace(part, seconds=tuple(one * factor for one in part.seconds)) for part in points)
            for world_size, points in self.all_reduce.items()
        }
        return replace(self, all_reduce=swept)

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
    compute: Mapping[int, Mapping[str, Any]],
    sweeps: Mapping[int, Mapping[str, Any]],
    *,
    buckets: Sequence[Mapping[str, Any]],
    in_flight: Mapping[str, Any] | None = None,
    wrapper_seconds: Sequence[float] = (0.0,),
    copy_seconds: Mapping[int, Sequence[float]] | None = None,
    link_bytes_per_byte: float = 1.0,
    scaling: Literal["strong", "weak"] = "strong",
    ranks_per_machine: int | None = None,
    is_16_bit: bool = False,
) -> Probe:
    """Return the probe from what the ranks measured, by number of ranks; `compute` must have that of one rank.

    `compute`: probe_compute's answers; `sweeps`: those of sweep_all_reduce, of at least as many numbers of ranks;
    `buckets`: probe_buckets' answer; `in_flight`: that of probe_slowdown_in_flight, without repeats where there is
    none. The link carries `link_bytes_per_byte` bytes for each byte of gradient; its sweep is in bytes of the link.
    """
    alone = compute[1]
    together = {world_size: answer for world_size, answer in compute.items() if world_size > 1}
    forward, backward = (np.asarray(alone[f"{part}_seconds"], dtype=float)[0] for part in ("forward", "backward"))
    return Probe(
        forward_seconds=_make_repeats(forward.mean(axis=1)),
        backward_seconds=_make_repeats(backward.mean(axis=1)),
        optimizer_seconds=_make_repeats(alone["optimizer_seconds"][0]),
        fixed_seconds={n: _make_repeats(np.mean(answer["fixed_seconds"], axis=0)) for n, answer in compute.items()},
        micro_batches=_estimate_works(forward + backward),
        gradients=_make_gradients(alone["gradients"], link_bytes_per_byte),
        buckets=_make_gradients(buckets, link_bytes_per_byte),
        all_reduce={
            world_size: tuple(
                AllReduce(num_bytes=point["num_bytes"], seconds=_make_repeats(point["seconds"]))
                for point in sweep["points"]
            )
            for world_size, sweep in sweeps.items()
        },
        contention={
            n: _compute_ratios(
                _sum_forward_backward(answer).mean(axis=2) / _compute_relative_work(answer, alone),
                _sum_forward_backward(alone),
            )
            for n, answer in together.items()
        },
        update_contention={
            n: _compute_ratios(np.asarray(answer["optimizer_seconds"]), np.asarray(alone["optimizer_seconds"]))
            for n, answer in together.items()
        },
        in_flight_slowdown=_compute_slowdown(in_flight),
        wrapper_seconds=_make_repeats(wrapper_seconds),
        copy_seconds={n: _make_repeats(repeats) for n, repeats in (copy_seconds or {}).items()},
        spread_seconds={n: _compute_spread(answer) for n, answer in together.items()},
        scaling=scaling,
        ranks_per_machine=ranks_per_machine,
        is_16_bit=is_16_bit,
        link_only=frozenset(sweeps.keys() - compute.keys()),
    )


def _make_repeats(values: Any) -> Repeats:
    return tuple(float(value) for value in values)


def _make_gradients(parts: Sequence[Mapping[str, Any]], factor: float) -> tuple[Gradient, ...]:
    return tuple(Gradient(num_bytes=part["num_bytes"] * factor, ready=part["ready"]) for part in parts)


def _sum_forward_backward(answer: Mapping[str, Any]) -> np.ndarray:
    """Return the seconds of forward and backward: (world_size, num_repeats, num_micro_batches)."""
    return np.asarray(answer["forward_seconds"], dtype=float) + np.asarray(answer["backward_seconds"], dtype=float)


def _compute_relative_work(answer: Mapping[str, Any], alone: Mapping[str, Any]) -> float:
    """Return the positions of a mean micro-batch against those of one rank: in weak scaling rows differ."""
    return float(np.mean(answer["num_positions"]) / np.mean(alone["num_positions"]))


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


def _compute_ratios(together: np.ndarray, alone: np.ndarray) -> Repeats:
    """Return, by repeat, the mean over ranks of (world_size, num_repeats) seconds / the median of those alone."""
    whole = alone.mean(axis=2) if alone.ndim == 3 else alone
    return _make_repeats(together.mean(axis=0) / np.median(whole))


def _compute_slowdown(in_flight: Mapping[str, Any] | None) -> Repeats:
    if in_flight is None or np.size(in_flight["alone_seconds"]) == 0:
        return (1.0,)
    alone = np.asarray(in_flight["alone_seconds"]).mean(axis=0)
    return _make_repeats(np.asarray(in_flight["in_flight_seconds"]).mean(axis=0) / alone)


def _compute_spread(answer: Mapping[str, Any]) -> Repeats:
    """Return, by repeat, the standard deviation per micro-batch that makes the latest rank as late as it was.

    That a rank has more work than the others in every repeat is no spread.
    """
    steps = np.asarray(answer["step_seconds"], dtype=float)
    steps = steps[:, _is_usual(steps)]
    world_size, num_repeats = steps.shape
    if num_repeats < 2:
        return (0.0,)
    late = _compute_lateness(steps - steps.mean(axis=1, keepdims=True)) * math.sqrt(num_repeats / (num_repeats - 1))
    return _make_repeats(late / compute_expected_maximum(world_size) / math.sqrt(answer["num_micro_batches"]))


def _is_usual(steps: np.ndarray) -> np.ndarray:
    # From medians: one long step would move the means, and with them every other step.
    late = _compute_lateness(steps - np.median(steps, axis=1, keepdims=True))
    return np.asarray(late <= _HICCUP * np.percentile(late, 75))


def _compute_lateness(apart: np.ndarray) -> np.ndarray:
    """Return by how much the latest rank is behind the mean of all, step by step."""
    return np.asarray(apart.max(axis=0) - apart.mean(axis=0))
