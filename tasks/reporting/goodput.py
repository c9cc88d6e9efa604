"""Goodput: how much sooner another batch on other ranks has an equally good model, as it is predicted.

Throughput times statistical efficiency, Qiao et al. 2021, Pollux (OSDI): of a batch of B samples each counts
(noise + own) / (noise + B) as much as of the comparison's own batch, where noise is the gradient noise scale, in
samples. It changes along the training, so that the samples that each segment would need are added up. It is known where
segments end, and moves evenly between these points; but in the first segment, in which it moves most, with the logged
training loss, as a power of it (Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 5.1).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field

from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.records.facts import Record
from tasks.records.measurement import Measurement
from tasks.records.noise_scale import NoiseScale
from tasks.records.outputs import Outputs
from tasks.records.predicted import BatchSpeed
from tasks.reporting.own_noise import select_own_points

_TIE = 0.02
"""Points that are no further from the best are as good: of these the one with the fewest ranks and smallest batch."""
_WINDOWS = 16
"""Of a segment, with as many steps each, over which the loss is averaged: one batch's luck is no progress."""


class Span(NamedTuple):
    """A part of a training, between two points at which the noise scale is known."""

    share: float
    """Of the training's samples."""
    begin: NoiseScale
    end: NoiseScale
    progress: Sequence[float] = ()
    """Of as many parts of its samples, one after another: how far the loss has fallen, 0 to 1, in its logarithm. Empty:
    the loss does not tell, and the samples needed move evenly between the two ends."""


class GoodputPoint(Record):
    """What one number of ranks would give at one global batch."""

    world_size: int
    """Number of ranks."""
    global_batch_size: int
    """Samples per optimizer step, all ranks together."""
    throughput: Estimate
    """Tokens per second / the baseline's at its own batch; a 95 % interval if measured, else a 90 % interval."""
    is_measured: bool
    """Whether the throughput was measured as a cell."""
    data: Estimate
    """Tokens needed for an equally good model / the baseline's; between the ends that the noise scale leaves open."""
    speedup: Estimate
    """throughput / data: how many times as soon; the ends are those of both together."""


class Goodput(Record):
    """What batch on how many ranks is predicted to have an equally good model first."""

    noise_scales: list[NoiseScale]
    """Of gradients along the baseline's training, in samples; the base model's first."""
    mean_noise_scale: float | None
    """The one noise scale that needs as many tokens as these at twice the batch; null where noise hides it."""
    own_batch_size: int
    """The comparison's global batch, at which every token counts in full."""
    points: list[GoodputPoint] = Field(default_factory=list)
    """By ranks and batch; empty where no throughput at other batches is given."""
    best: GoodputPoint | None = None
    """The point that is soonest; of those within 2 % of it the one with the fewest ranks, then the smallest batch."""


def compute_data_factor(noise_scale: float | None, batch: int, own: int) -> float:
    """Return how many times the samples a batch needs that `own` does; 1 where noise is all (None)."""
    return 1.0 if noise_scale is None else (noise_scale + batch) / (noise_scale + own)


def compute_data(spans: Sequence[Span], batch: int, own: int) -> Estimate:
    """Return the same for a training whose parts are given.

    The ends are those of all intervals at once: the noise scale may be too small, or too large, everywhere.
    """

    def add_up(name: str) -> float:
        return sum(
            one.share
            * _average(
                compute_data_factor(getattr(one.begin, name), batch, own),
                compute_data_factor(getattr(one.end, name), batch, own),
                one.progress,
            )
            for one in spans
        )

    found = (add_up("value"), add_up("low"), add_up("high"))
    return Estimate(value=found[0], low=min(found), high=max(found))


def _average(begin: float, end: float, progress: Sequence[float]) -> float:
    """Return the mean of a factor between two ends; above 1 it is the logarithm of noise + own batch that moves."""
    if not progress:
        return (begin + end) / 2
    if min(begin, end) <= 1:  # noise is all there
        return begin + (end - begin) * float(np.mean(progress))
    return 1 + float(np.mean((begin - 1) * ((end - 1) / (begin - 1)) ** np.array(progress)))


def measure_progress(losses: Sequence[float]) -> list[float]:
    """Return how far the loss of these steps, which are of one batch size, has fallen in each part, as Span says.

    Empty where it has not fallen, or there are too few steps.
    """
    if len(losses) < 2:
        return []
    means = [float(part.mean()) for part in np.array_split(np.asarray(losses), min(_WINDOWS, len(losses)))]
    first, last = float(losses[0]), means[-1]
    if not 0 < last < first or min(means) <= 0:
        return []
    return [min(max(math.log(first / mean) / math.log(first / last), 0.0), 1.0) for mean in means]


def compute_goodput(outputs: Outputs, measurement: Measurement | None) -> Goodput | None:
    """Return what is predicted from the noise scale and `measurement`, as it may be shown; None without the former."""
    own = outputs.params.train.global_batch_size
    scales = pair_scales(outputs)
    if not scales:
        return None
    points = _list_points(measurement, scales, own)
    return Goodput(
        noise_scales=select_own_points(outputs),
        mean_noise_scale=_invert(compute_data(scales, 2 * own, own).value, own),
        own_batch_size=own,
        points=points,
        best=select_best(points),
    )


def pair_scales(outputs: Outputs) -> list[Span]:
    """Return every segment, with the noise where it begins and where it ends, and of the first how its loss fell.

    Empty unless all are known, of this training's own weights.
    """
    found = select_own_points(outputs)
    segments = [one.facts for one in outputs.baseline.segments]
    ends = [(one.range, one.epoch) for one in segments]
    if not ends or [(one.range, one.epoch) for one in found] != [(segments[0].range, 0), *ends]:
        return []
    total = sum(one.num_samples for one in segments)
    steps = outputs.baseline.steps
    progress = measure_progress([steps.loss[at] for at in steps.with_loss.tolist() if at < segments[0].num_steps])
    spans = zip(segments, found[:-1], found[1:], strict=True)
    return [
        Span(part.num_samples / total, begin, end, () if number else progress)
        for number, (part, begin, end) in enumerate(spans)
    ]


def _invert(data: float, own: int) -> float | None:
    """Return the noise scale that needs so many times the samples at twice the own batch; None if it is all."""
    return None if data <= 1 else max((2 - data) / (data - 1), 0.0) * own


def _list_points(measurement: Measurement | None, scales: Sequence[Span], own: int) -> list[GoodputPoint]:
    if measurement is None:
        return []
    fastest = dict[tuple[int, int], BatchSpeed]()
    for one in (one for prediction in measurement.predictions for one in prediction.batches):
        before = fastest.setdefault((one.world_size, one.factor), one)
        if one.throughput.value > before.throughput.value:
            fastest[one.world_size, one.factor] = one
    sizes = {arm.world_size for arm in measurement.arms if arm.speedup is not None}
    found = []
    for one in fastest.values():
        data = compute_data(scales, own * one.factor, own)
        through = one.throughput
        found.append(
            GoodputPoint(
                world_size=one.world_size,
                global_batch_size=own * one.factor,
                throughput=through,
                is_measured=one.factor == 1 and one.world_size in sizes,
                data=data,
                speedup=Estimate(
                    value=through.value / data.value, low=through.low / data.high, high=through.high / data.low
                ),
            )
        )
    return found


def select_best(points: Sequence[GoodputPoint]) -> GoodputPoint | None:
    """Return the soonest point; None where there is none."""
    if not points:
        return None
    most = max(one.speedup.value for one in points)
    close = [one for one in points if one.speedup.value >= most * (1 - _TIE)]
    return min(close, key=lambda one: (one.world_size, one.global_batch_size))


def describe_noise(goodput: Goodput, *, most_ranks: int) -> str:
    """Return how the batch lies to the noise scale, and what growing it costs, up to as many times as ranks."""
    noise, own = goodput.mean_noise_scale, goodput.own_batch_size
    if noise is None:
        return (
            f"Noise hides the gradient even in batches far larger than {own}: growing the batch costs next to no "
            "tokens, and no end to that was seen."
        )

    def tell_cost(factor: int) -> str:
        return wording.format_small_percent(compute_data_factor(noise, factor * own, own) - 1)

    scaled = " in AdamW's coordinates" if any(one.second_moments for one in goodput.noise_scales) else ""
    with_ranks = f", {most_ranks} times the batch, so that it grows with the ranks, {tell_cost(most_ranks)}"
    more = with_ranks if most_ranks > 2 else ""
    where = (
        f"{wording.format_ratio(noise / own)} below" if noise > own else f"{wording.format_ratio(own / noise)} above"
    ) if noise else "far above"  # fmt: skip
    return (
        f"Your batch of {own} is {where} the gradient noise scale of {wording.format_three_digits(noise)} samples"
        f"{scaled}: twice the batch costs {tell_cost(2)} more tokens for an equally good model{more}."
    )
