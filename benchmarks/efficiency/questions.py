"""What is asked of a workload: trainings whose samples to a target are held against those of a baseline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.efficiency.recipe import Recipe
from benchmarks.efficiency.workloads import WORKLOADS, WorkloadPlan

FACTORS = (8, 4, 2)
"""The most telling first."""
_MOST = 4
"""Times the baseline's samples that a training may take until it has the target."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A training beside its baseline."""

    question: str
    """What it is part of the answer to."""
    baselines: tuple[Recipe, ...]
    """One per seed: the target is the highest loss that one of them ends with."""
    recipes: tuple[Recipe, ...]
    """The training from as many seeds."""


def list_trials(name: str, *, seeds: Sequence[int]) -> Iterator[Trial]:
    """Yield all trials of a workload, the most telling first; those of one seed alone with the first."""
    plan = WORKLOADS[name]
    base = Recipe(workload=name, samples=plan.samples, seed=seeds[0])
    own = tuple(replace(base, seed=seed) for seed in seeds)
    rule = {factor: factor**0.5 if plan.rule == "sqrt" else float(factor) for factor in FACTORS}

    def vary(question: str, baselines: Sequence[Recipe], **changes: object) -> Trial:
        longer = [replace(one, samples=_MOST * one.samples) for one in baselines]
        return Trial(
            question=question, baselines=tuple(baselines),
            recipes=tuple(replace(one, **changes) for one in longer),  # type: ignore[arg-type]
        )  # fmt: skip

    if plan.passes:
        yield from _list_passes(plan, base, rule)
        return
    for factor in FACTORS:
        yield vary("rule", own, factor=factor, growth=rule[factor])
    first = own[:1]
    for growth in (0.5, 2.0):
        yield vary("rate", first, growth=growth)
    for factor in (4, 8):
        for growth in (0.5, 2.0):
            yield vary("rate", first, factor=factor, growth=rule[factor] * growth)
    for factor in (4, 8):
        for growth in (1.0, 2.0):
            yield vary("memory", first, factor=factor, growth=rule[factor] * growth, memory="samples")
    cold = [replace(base, warmup="none")]
    yield vary("warm-up", cold, factor=8, growth=rule[8], warmup="none")
    yield vary("warm-up", first, factor=8, growth=rule[8], warmup="steps")
    decayed = [replace(base, schedule="run")]
    for times in (1.0, 1.5, 2.0, 3.0):
        yield Trial(
            question="schedule", baselines=tuple(decayed),
            recipes=(
                replace(decayed[0], factor=4, growth=rule[4], samples=_round(times * plan.samples, plan.every)),
            ),
        )  # fmt: skip


def _list_passes(plan: WorkloadPlan, base: Recipe, rule: Mapping[int, float]) -> Iterator[Trial]:
    """Yield trials as the preset embedded-batches trains, and with one half of what is its own.

    It goes range by range, more often over each the larger the batch is, and the rate falls to nothing in each pass.
    """
    for factor, question, is_apart, schedule in (
        (4, "preset", True, "segment"), (4, "passes", True, "constant"), (4, "sawtooth", False, "segment"),
        (2, "preset", True, "segment"),
    ):  # fmt: skip
        often = plan.passes[factor]
        own: dict[str, Any] = {"schedule": schedule, "passes": plan.passes[1] if is_apart else 0}
        changes = {"passes": often if is_apart else 0, "samples": plan.samples // plan.passes[1] * often}
        yield Trial(
            question=question, baselines=(replace(base, **own),),
            recipes=(replace(base, **{**own, **changes}, factor=factor, growth=rule[factor]),),
        )  # fmt: skip


def _round(samples: float, every: int) -> int:
    return round(samples / every) * every
