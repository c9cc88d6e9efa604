"""What more ranks would give: the step at any number of ranks from its parts, with what is not known about them.

The model: backward goes on while buckets are exchanged one after another, each as soon as its last gradient is ready
and the bucket before it is through. What is not over when backward is, is exposed.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.measuring.link import Draws, Link
from tasks.measuring.probe import Probe, Repeats, compute_expected_maximum
from tasks.process.wording import format_plural, join_names
from tasks.records.measurement import Estimate, PredictedCurve, PredictedPoint, Prediction

WORLD_SIZES = (2, 4, 8, 16, 64)
"""Numbers of ranks that a prediction is made for."""

_GROWTH = (0.0, 1.0)
"""Power of the hops with which a link's latency grows, where one number of ranks was measured: any as likely."""
_TAILS = (5, 95)
"""Percentiles between which 90 % of the draws lie."""
MODEL_ERROR_FILE = Path(__file__).with_name("model_error.json")
_BUCKET_MIB = (1, 2, 5, 10, 25, 50, 100, 200, 400)
"""Bucket sizes that the best is looked for among."""


@dataclass(frozen=True, kw_only=True)
class ModelError:
    """By how much the model itself is off, found by benchmarks/prediction on emulated devices."""

    relative: float
    """Root mean square of log(measured / predicted speedup) at measured numbers of ranks."""
    relative_link_only: float
    """The same beyond them, where their link was measured."""
    relative_extrapolated: float
    """The same beyond them, where nothing was."""
    calibrated_on: str
    """Day, YYYY-MM-DD."""
    num_configurations: int
    """What it was found from."""


def read_model_error(file: Path = MODEL_ERROR_FILE) -> ModelError | None:
    """Return what the benchmark wrote; None if it has not been run."""
    return ModelError(**json.loads(file.read_bytes())) if file.exists() else None


def predict(
    probe: Probe, world_sizes: Sequence[int], *, num_draws: int = 2000, seed: int, model_error: ModelError | None = None
) -> dict[int, Estimate]:
    """Return the speedup at each number of ranks, with a 90 % interval: strong or weak scaling, as the probe says.

    The value is that of the repeats' medians. The interval comes from drawing the repeats anew, and from `model_error`.
    """
    random = np.random.default_rng(seed)
    drawn = _Drawn(probe, random, num_draws)
    alone = drawn.step_seconds(1)
    # Student's: few configurations leave the model's error itself uncertain.
    errors = random.standard_t(model_error.num_configurations, size=num_draws) if model_error else np.zeros(num_draws)
    estimates = {}
    for world_size in world_sizes:
        work = world_size if probe.scaling == "weak" else 1
        ratios = work * alone / drawn.step_seconds(world_size)
        spread = ratios[1:] * np.exp(_select_relative_error(model_error, probe, world_size) * errors)
        low, high = np.percentile(spread, _TAILS).tolist()
        value = float(ratios[0])
        estimates[world_size] = Estimate(value=value, low=min(low, value), high=max(high, value))
    return estimates


def make_prediction(
    probe: Probe,
    *,
    measured: Mapping[int, Estimate],
    seed: int,
    model_error: ModelError | None,
    world_sizes: Sequence[int] = WORLD_SIZES,
) -> Prediction:
    """Return the record for the report: the comparison as it is and after each change; `measured`: speedups."""
    curves = []
    for lever, changed in [("as it is", probe), *list_levers(probe)]:
        found = predict(changed, world_sizes, seed=seed, model_error=model_error)
        points = [
            PredictedPoint(
                world_size=world_size,
                speedup=estimate,
                measured=measured.get(world_size) if changed is probe else None,
                is_extrapolated=_is_extrapolated(probe, world_size),
            )
            for world_size, estimate in found.items()
        ]
        curves.append(PredictedCurve(lever=lever, points=points))
    return Prediction(curves=curves, assumptions=_list_assumptions(probe, model_error))


def list_levers(probe: Probe) -> list[tuple[str, Probe]]:
    """Return the changes that could help, in plain words, each with the probe as it would then be."""
    changes = [
        ("twice the micro-batches per step, so twice the global batch", probe.scale_accumulation(2)),
        *([] if probe.is_16_bit else [("gradients exchanged in 16 bits", probe.scale_gradient_bytes(0.5))]),
        ("a link twice as fast", probe.scale_link_seconds(0.5)),
    ]
    at = max(probe.measured_world_sizes)
    # DDP fills a bucket by fp32 bytes, whatever the link then carries.
    carried = 0.5 if probe.is_16_bit else 1.0
    others = [(mib, probe.rebuild_buckets(carried * mib * 2**20)) for mib in _BUCKET_MIB]
    others = [(mib, other) for mib, other in others if other.buckets != probe.buckets]
    if others:
        mib, best = max(others, key=lambda other: predict(other[1], [at], num_draws=1, seed=0)[at].value)
        changes.insert(-1, (f"gradient buckets of {mib} MiB", best))
    return changes


class _Drawn:
    """The probe's figures: first as the medians of their repeats, then as the medians of repeats drawn anew."""

    def __init__(self, probe: Probe, random: np.random.Generator, num_draws: int) -> None:
        def draw(repeats: Repeats, *, take: Callable[..., Draws] = np.median) -> Draws:
            values = np.array(repeats)
            picked = values[random.integers(len(values), size=(num_draws, len(values)))]
            return np.concatenate([[take(values)], take(picked, axis=1)])

        self._probe = probe
        self._forward, self._backward = draw(probe.forward_seconds), draw(probe.backward_seconds)
        self._optimizer = draw(probe.optimizer_seconds)
        self._copy = {n: np.maximum(draw(repeats), 0.0) for n, repeats in probe.copy_seconds.items()}
        self._fixed = {n: draw(repeats) for n, repeats in probe.fixed_seconds.items()}
        # The mean: one step is as late as its latest rank, many are so in the mean.
        self._spread = {n: draw(repeats, take=np.mean) for n, repeats in probe.spread_seconds.items()}
        self._slowdown = np.maximum(draw(probe.in_flight_slowdown), 1.0)
        self._per_bucket = np.maximum(draw(probe.wrapper_seconds), 0.0) / max(len(probe.buckets), 1)
        self._contention = {n: draw(repeats) for n, repeats in probe.contention.items()}
        self._update_contention = {n: draw(repeats) for n, repeats in probe.update_contention.items()}
        swept = {n: np.stack([draw(one.seconds) for one in points], axis=1) for n, points in probe.all_reduce.items()}
        growth = np.concatenate([[np.mean(_GROWTH)], random.uniform(*_GROWTH, size=num_draws)])
        self._link = Link(probe.all_reduce, swept, growth=growth)

    def step_seconds(self, world_size: int) -> Draws:
        """Return the seconds of one optimizer step."""
        num_micro_batches, work, last = self._probe.compute_busiest_share(world_size)
        slower = self._compute_contention(self._contention, world_size)
        earlier = (work - last) * slower * (self._forward + self._backward)
        fixed = _select_nearest(self._fixed, world_size) + num_micro_batches * _select_nearest(self._copy, world_size)
        update = self._optimizer * self._compute_contention(self._update_contention, world_size) + fixed
        forward, backward = last * slower * self._forward, last * slower * self._backward
        if world_size == 1:
            return np.asarray(earlier + forward + backward + update)
        straggler = (
            math.sqrt(num_micro_batches)
            * compute_expected_maximum(world_size)
            * _select_nearest(self._spread, world_size)
        )
        return np.asarray(earlier + forward + self._compute_exchange_seconds(backward, world_size) + update + straggler)

    def _compute_exchange_seconds(self, backward: Draws, world_size: int) -> Draws:
        """Return the seconds from the beginning of the last backward until the last bucket is through."""
        now = through = np.zeros_like(backward)
        done = 0.0
        for bucket in self._probe.buckets:
            now = self._advance_computing(now, through, (bucket.ready - done) * backward) + self._per_bucket
            through = np.maximum(now, through) + self._link.seconds(bucket.num_bytes, world_size)
            done = bucket.ready
        return np.maximum(self._advance_computing(now, through, (1 - done) * backward), through)

    def _advance_computing(self, now: Draws, through: Draws, work: Draws) -> Draws:
        """Return when so many seconds of computing are done; until the link is through it goes slower."""
        slowed = np.minimum(work * self._slowdown, np.maximum(through - now, 0.0))
        return np.asarray(now + slowed + work - slowed / self._slowdown)

    def _compute_contention(self, measured: Mapping[int, Draws], world_size: int) -> Draws:
        """Return the contention: per further rank as much as at the nearest numbers measured, never below 1."""
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


def _select_relative_error(model_error: ModelError | None, probe: Probe, world_size: int) -> float:
    if model_error is None or world_size == 1:
        return 0.0
    if not _is_extrapolated(probe, world_size):
        return model_error.relative
    return model_error.relative_link_only if world_size <= max(probe.all_reduce) else model_error.relative_extrapolated


def _is_extrapolated(probe: Probe, world_size: int) -> bool:
    return world_size > max(probe.measured_world_sizes)


def _list_assumptions(probe: Probe, model_error: ModelError | None) -> list[str]:
    swept = join_names([str(world_size) for world_size in sorted(probe.all_reduce)])
    if model_error is None:
        error = "The intervals hold the noise of the measurements only: the model's own error has not been calibrated."
    else:
        error = (
            f"The intervals hold the noise of the measurements and the model's own error, {model_error.relative:.1%} "
            f"at measured numbers of ranks, {model_error.relative_link_only:.1%} where only the link was measured and "
            f"{model_error.relative_extrapolated:.1%} beyond, found on emulated devices of "
            f"{model_error.num_configurations} configurations on {model_error.calibrated_on}."
        )
    link = f"All-reduce was measured with {swept} ranks; for more it is scaled as a ring over links like these."
    if len(probe.all_reduce) == 1:
        link += " How its latency grows with them, one number cannot tell: not at all to with every hop, as likely."
    contention = "Contention goes on growing with every rank, all on one machine."
    if probe.ranks_per_machine is not None:
        contention = f"Contention grows up to {probe.ranks_per_machine} ranks, which share a machine, and no further."
    scaling = "Weak scaling: the batch of each rank stays as it is, except where a change says otherwise."
    if probe.scaling == "strong":
        busy = format_plural(len(probe.micro_batches), "rank")
        scaling = (
            "Strong scaling: the global batch and its micro-batches' size stay as they are, except where a change says "
            f"otherwise; more than {busy} would find no micro-batch."
        )
    return [
        scaling,
        link,
        contention,
        "Every rank is as fast as their mean: one that is always slower is in the waterfall.",
        "Loading data keeps up with any number of ranks.",
        "Converting gradients to 16 bits costs nothing.",
        error,
    ]
