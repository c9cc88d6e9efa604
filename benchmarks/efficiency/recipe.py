"""One training of a workload, as it differs from the workload's own; and what came of it."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tasks.records.noise_scale import NoiseScale
from tasks.reporting.time_to_quality import find_crossing


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained."""

    workload: str
    """Name of one of workloads.py."""
    factor: int = 1
    """How many times the workload's batch."""
    growth: float = 1.0
    """How many times its peak learning rate."""
    seed: int = 1
    """Of the order of the rows and of dropout."""
    memory: Literal["steps", "samples"] = "steps"
    """What the moments' decay is counted in: as many steps for any batch, as is usual, or as many samples."""
    warmup: Literal["samples", "steps", "none"] = "samples"
    """The same of the warm-up; or there is none."""
    schedule: Literal["constant", "run", "segment"] = "constant"
    """What the rate falls over, to nothing: not at all, over all samples, over each pass of each range."""
    passes: int = 0
    """Passes over each range before the next begins; 0: one over each in turn, again and again."""
    samples: int
    """Samples at most; the whole of a schedule over the run."""


@dataclass(frozen=True, kw_only=True)
class NoisePoint:
    """The gradient noise scale at one point of a training."""

    samples: int
    """Learned from until there."""
    plain: NoiseScale
    """Of the gradient."""
    scaled: NoiseScale | None
    """Of the gradient in the optimizer's own coordinates; None where it has no second moments, or none yet."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What came of a recipe."""

    recipe: Recipe
    points: list[tuple[int, float]]
    """(Samples, held-out loss in nats per label), by samples, from the base model on."""
    noise: list[NoisePoint]
    """By samples; empty unless it was asked for."""
    norms: list[tuple[int, float]] = field(default_factory=list)
    """(Samples, norm of the gradient before clipping) of every step."""
    losses: list[float] = field(default_factory=list)
    """Mean loss of every step's labels, before its update."""

    def count_samples_until(self, target: float) -> float | None:
        """Return after how many samples the held-out loss is the target; None if it never was."""
        return find_crossing(self.points, target)

    def as_json(self) -> dict[str, Any]:
        """Return what stands in a line of the file."""
        noise = [
            {
                "samples": one.samples, "plain": one.plain.model_dump(),
                "scaled": one.scaled and one.scaled.model_dump(),
            }
            for one in self.noise
        ]  # fmt: skip
        own = {"points": self.points, "noise": noise, "norms": self.norms, "losses": self.losses}
        return {"recipe": dataclasses.asdict(self.recipe), **own}


def read_curves(file: Path) -> list[Curve]:
    """Return the curves of a file, one in each line; none where there is no file."""
    if not file.exists():
        return []
    return [_parse_curve(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def append_curve(file: Path, curve: Curve) -> None:
    """Add a curve to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(curve.as_json()) + "\n")


def find_curve(curves: Iterable[Curve], recipe: Recipe) -> Curve | None:
    """Return the curve of a recipe; None where it was not trained."""
    return next((one for one in curves if one.recipe == recipe), None)


def select_target(baselines: Sequence[Curve]) -> float:
    """Return the highest loss that one of these trainings ends with, so that each of them comes there."""
    return max(one.points[-1][1] for one in baselines)


def _parse_curve(raw: dict[str, Any]) -> Curve:
    noise = [
        NoisePoint(
            samples=one["samples"], plain=NoiseScale.model_validate(one["plain"]),
            scaled=one["scaled"] and NoiseScale.model_validate(one["scaled"]),
        )
        for one in raw["noise"]
    ]  # fmt: skip
    points = [(int(samples), float(loss)) for samples, loss in raw["points"]]
    norms = [(int(samples), float(norm)) for samples, norm in raw.get("norms", [])]
    losses = [float(loss) for loss in raw.get("losses", [])]
    return Curve(recipe=Recipe(**raw["recipe"]), points=points, noise=noise, norms=norms, losses=losses)
