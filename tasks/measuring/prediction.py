"""What more ranks would give: the measured speedup, carried on by a model of the step, with what is not known about it.

A curve goes through the speedup that was measured on the most ranks; the model of the step says how it goes on from
there.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from tasks.measuring.probe import Probe
from tasks.measuring.step_model import draw_ratios
from tasks.process.wording import format_ratio_with_interval, join_names
from tasks.records.estimate import Estimate
from tasks.records.predicted import BatchSpeed, PredictedCurve, PredictedPoint, Prediction
from tasks.strategies.communication import Draws, find_communication

WORLD_SIZES = (2, 4, 8, 16, 64)
"""Numbers of ranks that a prediction is made for."""

_TAILS = (5, 95)
"""Percentiles between which 90 % of the draws lie."""
_DEVIATE = 1.959964
"""Standard normal that 2.5 % are above: where a 95 % interval ends."""
MODEL_ERROR_FILE = Path(__file__).with_name("model_error.json")
_CALIBRATED = ("ddp",)
"""Strategies whose model was held against emulated devices."""
_MOST_OFF = 0.25
"""Of the measured speedup: a model of another strategy that is further off says nothing of other numbers of ranks."""
_BUCKET_MIB = (1, 2, 5, 10, 25, 50, 100, 200, 400)
"""Bucket sizes that the best is looked for among."""


@dataclass(frozen=True, kw_only=True)
class ModelError:
    """By how much the model itself is off, found by benchmarks/prediction on emulated devices."""

    relative: float
    """Root mean square of log(measured speedup / the model's own) at measured numbers of ranks."""
    relative_link_only: float
    """The same of the curve through the measured speedup beyond them, where their link was measured."""
    relative_extrapolated: float
    """The same where nothing was."""
    calibrated_on: str
    """Day, YYYY-MM-DD."""
    num_configurations: int
    """What it was found from."""

    def widen(self, off: float) -> Self:
        """Return it with no error below `off`, of the logarithm."""
        names = ("relative", "relative_link_only", "relative_extrapolated")
        return replace(self, **{name: max(getattr(self, name), off) for name in names})


def read_model_error(file: Path = MODEL_ERROR_FILE) -> ModelError | None:
    """Return what the benchmark wrote; None if it has not been run."""
    return ModelError(**json.loads(file.read_bytes())) if file.exists() else None


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """Where a curve begins: the speedup that was measured on the most ranks."""

    probe: Probe
    """The comparison as it was measured."""
    world_size: int
    """Number of ranks."""
    speedup: Estimate
    """Measured, with a 95 % interval."""


def predict(
    probe: Probe,
    world_sizes: Sequence[int],
    *,
    num_draws: int = 2000,
    seed: int,
    model_error: ModelError | None = None,
    anchor: Anchor | None = None,
    against: Probe | None = None,
) -> dict[int, Estimate]:
    """Return the speedup at each number of ranks, with a 90 % interval: strong or weak scaling, as the probe says.

    Without an anchor that is what the model says by itself, with one the measured speedup times what the model makes of
    it. The value is that of the repeats' medians. The interval comes from drawing the repeats anew, in the anchor's
    probe likewise, from the interval of the measured speedup and from `model_error`. `against`: as draw_ratios has it.
    """
    ratios = draw_ratios(probe, world_sizes, seed=seed, num_draws=num_draws, against=against)
    random = np.random.default_rng([seed, 1])
    # Student's: few configurations leave the model's error itself uncertain.
    errors = random.standard_t(model_error.num_configurations, size=num_draws) if model_error else np.zeros(num_draws)
    begin: Draws = np.ones(num_draws + 1)
    if anchor is not None:
        own = draw_ratios(anchor.probe, [anchor.world_size], seed=seed, num_draws=num_draws)[anchor.world_size]
        begin = _draw_measured(anchor.speedup, random, num_draws) / own
    estimates = {}
    for world_size, ratio in ratios.items():
        drawn = begin * ratio
        spread = drawn[1:] * np.exp(_select_relative_error(model_error, probe, world_size) * errors)
        low, high = np.percentile(spread, _TAILS).tolist()
        value = float(drawn[0])
        estimates[world_size] = Estimate(value=value, low=min(low, value), high=max(high, value))
    return estimates


def _draw_measured(speedup: Estimate, random: np.random.Generator, num_draws: int) -> Draws:
    """Return the measured speedup, then draws whose logarithms spread to either side as its 95 % interval does."""
    deviates = random.standard_normal(num_draws)
    below, above = (abs(math.log(end / speedup.value)) / _DEVIATE for end in (speedup.low, speedup.high))
    return np.concatenate([[speedup.value], speedup.value * np.exp(deviates * np.where(deviates < 0, below, above))])


BATCH_FACTORS = (1, 2, 4, 8)
"""How many times the global batch whose throughput is predicted."""


def make_prediction(
    probe: Probe,
    *,
    measured: Mapping[int, Estimate],
    seed: int,
    model_error: ModelError | None,
    cells: Sequence[str] = (),
    world_sizes: Sequence[int] = WORLD_SIZES,
) -> Prediction:
    """Return the record for the report: the `cells` as they are and after each change.

    `measured`: number of ranks -> speedup with a 95 % interval, at least one. Beyond the most of them nothing is said
    where the model by itself is at odds with it, nor on so many ranks that one has nothing to do. A model whose error
    is known of another strategy alone is taken to be off by no less than it was here.
    """
    largest = max(measured)
    anchor = Anchor(probe=probe, world_size=largest, speedup=measured[largest])
    own = predict(probe, sorted(measured), seed=seed, model_error=model_error)
    off = abs(math.log(own[largest].value / measured[largest].value))
    is_calibrated = probe.strategy in _CALIBRATED
    if model_error is not None and not is_calibrated:
        model_error = model_error.widen(off)
    sizes = sorted({*world_sizes, *measured})

    def extend(changed: Probe, sizes: Sequence[int]) -> list[PredictedPoint]:
        sizes = [n for n in sizes if changed.explain_unknown(n) is None]
        found = predict(changed, sizes, seed=seed, model_error=model_error, anchor=anchor)
        return [
            PredictedPoint(world_size=n, speedup=one, is_extrapolated=_is_extrapolated(probe, n))
            for n, one in found.items()
        ]

    points = [
        PredictedPoint(
            world_size=n,
            measured=measured[n],
            model=one,
            model_error=one.value / measured[n].value - 1,
            is_extrapolated=False,
        )
        for n, one in own.items()
    ]
    levers, left_out = list[PredictedCurve](), []
    why = _explain_contradiction(anchor, own[largest]) if is_calibrated else _explain_distance(anchor, own[largest])
    if why is not None:
        left_out.append(why)
    else:
        points += extend(probe, [n for n in sizes if n not in measured])
        levers = [PredictedCurve(lever=lever, points=extend(changed, sizes)) for lever, changed in list_levers(probe)]
        left_out += dict.fromkeys(filter(None, map(probe.explain_unknown, sizes)))
    as_is = PredictedCurve(lever="as it is", points=sorted(points, key=lambda point: point.world_size))
    reached = sorted({1, *measured, *(() if why is not None else sizes)})
    return Prediction(
        cells=list(cells),
        curves=[as_is, *levers],
        assumptions=_list_assumptions(probe, model_error, largest),
        left_out=left_out,
        batches=_predict_batches(probe, reached, measured, seed=seed, model_error=model_error),
    )


def _predict_batches(
    probe: Probe,
    world_sizes: Iterable[int],
    measured: Mapping[int, Estimate],
    *,
    seed: int,
    model_error: ModelError | None,
) -> list[BatchSpeed]:
    """Return the throughput at larger global batches: more micro-batches of the same size, so that memory stays.

    Each number of ranks begins at its own measured speedup, or at that of the most ranks; one rank at 1.
    """
    if probe.scaling == "weak":
        return []
    found = []
    for world_size in world_sizes:
        at = world_size if world_size in measured else max(measured)
        anchor = None if world_size == 1 else Anchor(probe=probe, world_size=at, speedup=measured[at])
        for factor in BATCH_FACTORS:
            changed = probe.scale_accumulation(factor)
            if (factor, world_size) == (1, 1) or (world_size > 1 and changed.explain_unknown(world_size)):
                continue
            one = predict(changed, [world_size], seed=seed, model_error=model_error, anchor=anchor, against=probe)
            is_measured = factor == 1 and world_size in measured
            throughput = measured[world_size] if is_measured else one[world_size]
            found.append(BatchSpeed(world_size=world_size, factor=factor, throughput=throughput))
    return found


def _explain_contradiction(anchor: Anchor, own: Estimate) -> str | None:
    """Return why nothing is foretold where the model's interval and the measured one have no value in common."""
    if own.low <= anchor.speedup.high and anchor.speedup.low <= own.high:
        return None
    return (
        f"Other numbers of ranks are withheld: for {anchor.world_size} the model alone says "
        f"{format_ratio_with_interval(own)} and measured is {format_ratio_with_interval(anchor.speedup)}; the two "
        "intervals do not overlap, so something is at work here that the model does not know."
    )


def _explain_distance(anchor: Anchor, own: Estimate) -> str | None:
    """Return why nothing is foretold where a model that nobody has calibrated is far from what was measured."""
    if abs(math.log(own.value / anchor.speedup.value)) <= math.log(1 + _MOST_OFF):
        return None
    return (
        f"Other numbers of ranks are withheld: for {anchor.world_size} the model alone says "
        f"{format_ratio_with_interval(own)} and measured is {format_ratio_with_interval(anchor.speedup)}, more than "
        f"{_MOST_OFF:.0%} apart, so something is at work here that the model does not know."
    )


def list_levers(probe: Probe) -> list[tuple[str, Probe]]:
    """Return the changes that could help, in plain words, each with the probe as it would then be."""
    changes = [
        ("twice the global batch, as twice the micro-batches per step", probe.scale_accumulation(2)),
        *(
            [("gradients exchanged in 16 bits", probe.scale_gradient_bytes(0.5))]
            if probe.buckets and not probe.is_16_bit
            else []
        ),
        ("a link twice as fast", probe.scale_link_seconds(0.5)),
    ]
    at = max(probe.measured_world_sizes)
    # DDP fills a bucket by fp32 bytes, whatever the link then carries.
    carried = 0.5 if probe.is_16_bit else 1.0
    others = [(mib, probe.rebuild_buckets(carried * mib * 2**20)) for mib in _BUCKET_MIB if probe.buckets]
    others = [(mib, other) for mib, other in others if other.buckets != probe.buckets]
    if others:
        mib, best = max(others, key=lambda other: predict(other[1], [at], num_draws=1, seed=0)[at].value)
        changes.insert(-1, (f"gradient buckets of {mib} MiB", best))
    return changes


def _select_relative_error(model_error: ModelError | None, probe: Probe, world_size: int) -> float:
    if model_error is None or world_size == 1:
        return 0.0
    if not _is_extrapolated(probe, world_size):
        return model_error.relative
    return (
        model_error.relative_link_only
        if world_size <= probe.swept_world_sizes[-1]
        else model_error.relative_extrapolated
    )


def _is_extrapolated(probe: Probe, world_size: int) -> bool:
    return world_size > max(probe.measured_world_sizes)


def _list_assumptions(probe: Probe, model_error: ModelError | None, largest: int) -> list[str]:
    swept = join_names([str(world_size) for world_size in probe.swept_world_sizes])
    begin = (
        f"The curve goes through the speedup that was measured with {largest} ranks, whose interval is in every "
        "further point; contention, stragglers and the wrapper's cost are those of the counterfactual runs."
    )
    if model_error is None:
        error = "Beside it the intervals hold the noise of the parts only: the model's own error was not calibrated."
    else:
        error = (
            "Beside it the intervals hold the noise of the parts and the model's own error, "
            f"{model_error.relative:.1%} at measured numbers of ranks, {model_error.relative_link_only:.1%} where only "
            f"the link was measured and {model_error.relative_extrapolated:.1%} beyond, found on emulated devices of "
            f"{model_error.num_configurations} configurations on {model_error.calibrated_on}"
            f"{'' if probe.strategy in _CALIBRATED else ' with ddp, or as much as this model is off here'}."
        )
    kinds = join_names([kind.replace("_", "-") for kind in probe.links])
    link = (
        f"{kinds[0].upper()}{kinds[1:]} {'was' if len(probe.links) == 1 else 'were'} measured with {swept} ranks; for "
        "more it is scaled as a ring over links like these."
    )
    if len(probe.swept_world_sizes) == 1:
        link += " How its latency grows with them, one number cannot tell: not at all to with every hop, as likely."
    contention = "Contention goes on growing with every rank, all on one machine."
    if probe.ranks_per_machine is not None:
        contention = f"Contention grows up to {probe.ranks_per_machine} ranks, which share a machine, and no further."
    scaling = "Weak scaling: the batch of each rank stays as it is, except where a change says otherwise."
    if probe.scaling == "strong":
        scaling = (
            "Strong scaling: the global batch and its micro-batches' size stay as they are, except where a change says "
            "otherwise."
        )
    return [
        begin,
        scaling,
        link,
        contention,
        "A rank is late by chance, any of them as often: one that is always slower is taken for that.",
        "Loading data keeps up with any number of ranks.",
        *(["Converting gradients to 16 bits costs nothing."] if probe.buckets else []),
        *find_communication(probe.strategy).ASSUMPTIONS,
        error,
    ]
