"""One cell, rehearsed: its memory, whether it fits, and how fast it could be."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.machine.gpu_checks import compute_needed_gib
from tasks.params import Params
from tasks.records.run import RunFile, read_segment
from tasks.rehearsal.cards import GIB, Card
from tasks.rehearsal.inputs import Inputs
from tasks.rehearsal.speed import StepLoad
from training.config import TrainingConfig
from training.data.plan import SegmentPlan, make_segment_plan
from training.process.failure import UnfitModelError
from training.record.segment_facts import SegmentFacts
from training.rehearsal.rehearsed_step import RehearsedStep, rehearse_step
from training.strategies import count_shares
from training.workloads import find_workload, open_training_rows

Rehearse = Callable[[TrainingConfig], RehearsedStep]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a cell needs, and what there is."""

    needed_gib: float
    """Allocated, reserved in pieces beside it, and what a process takes of a GPU before its model."""
    missing_gib: float
    """0 where it fits."""


_RUNS = Path("data/runs")


_MOST_STEPS_LOOKED_AT = 50
_SHARES_ITS_UPDATE = ("zero1", "fsdp2")


@dataclass(frozen=True, kw_only=True)
class RehearsedCell:
    """What was found of a cell."""

    name: str
    config: TrainingConfig
    step: RehearsedStep
    fit: Fit
    remedies: list[str] | None
    """Changes that make it fit; empty where it does, and where none was found; None where none was sought."""
    num_missing_cards: int
    load: StepLoad
    recorded_gib: float | None
    """Most memory that a training of it on such a card recorded; None where there was none."""


def rehearse_cell(
    name: str, params: Params, inputs: Inputs, *, card: Card, num_cards: int, seeks_remedies: bool = True
) -> RehearsedCell:
    """Return what is found; raises what building the strategy raises."""
    config = inputs.make_config(params, name)

    def rehearse(changed: TrainingConfig) -> RehearsedStep:
        # Where ranks have rows of their own all have the same parts of the model, or the first has most.
        ranks = range(1 if _has_rows_of_its_own(changed) else changed.world_size)
        results = (rehearse_step(changed, rank=rank, capability=card.capability) for rank in ranks)
        return max(results, key=lambda step: step.total_bytes)

    step = rehearse(config)
    fit = judge_fit(step, card)
    spread = params.cells[name]
    return RehearsedCell(
        name=name,
        config=config,
        step=step,
        fit=fit,
        remedies=(find_remedies(config, card, rehearse) if fit.missing_gib else []) if seeks_remedies else None,
        num_missing_cards=0 if spread.oversubscribe else max(0, spread.ranks_per_node - num_cards),
        load=weigh_step(config, step),
        recorded_gib=find_recorded_gib(config, card),
    )


def _has_rows_of_its_own(config: TrainingConfig) -> bool:
    return count_shares(config.strategy, config.world_size, config.options) == config.world_size


def weigh_step(config: TrainingConfig, step: RehearsedStep) -> StepLoad:
    """Return what the first rank runs in a step, on average over steps of all segments."""
    workload, results = find_workload(config.workload), []
    for segment in config.segments:
        plan = make_segment_plan(open_training_rows(workload, config, segment), config, segment)
        steps = np.linspace(1, plan.num_steps, min(plan.num_steps, _MOST_STEPS_LOOKED_AT)).astype(int).tolist()
        results += [_weigh_numbered(plan, number, config, is_image=workload.UNIT == "image") for number in steps]
    positions, num_micro_batches, tokens = np.mean(results, axis=0).tolist()
    shares = config.world_size if config.strategy in _SHARES_ITS_UPDATE else 1
    return StepLoad(
        work=step.work,
        positions_rehearsed=step.num_positions,
        positions=positions,
        num_micro_batches=num_micro_batches,
        tokens=tokens,
        num_updated=step.num_parameters / shares,
        world_size=config.world_size,
        precision=config.precision,
        is_modelled=_has_rows_of_its_own(config),
    )


def _weigh_numbered(plan: SegmentPlan, number: int, config: TrainingConfig, *, is_image: bool) -> tuple[int, int, int]:
    """Return positions and micro-batches of the first rank, and what the step counts."""
    step = plan.step(number)
    mine = [step.micro_batches[place] for place in step.select_for_rank(0, config.world_size) if place is not None]
    if is_image:
        positions = sum(len(part) for part in mine)
    elif step.is_packed:
        positions = sum(int(plan.lengths[part].sum()) for part in mine)
    else:
        positions = sum(len(part) * int(plan.lengths[part].max()) for part in mine)
    return positions, len(mine), step.num_tokens


def find_recorded_gib(config: TrainingConfig, card: Card) -> float | None:
    """Return the most memory that a rank of this very cell had allocated on such a card; None where none trained."""
    run = RunFile.read_if_there(_RUNS / config.cell)
    if run is None or (run.strategy, run.world_size) != (config.strategy, config.world_size):
        return None
    facts = [read_segment(_RUNS / config.cell / part.folder) for part in run.segments]
    peaks = [part.peak_memory_gib for part in facts if is_record_of(part, config, card)]
    return max((peak for peak in peaks if peak is not None), default=None)


def is_record_of(facts: SegmentFacts, config: TrainingConfig, card: Card) -> bool:
    """Return whether a segment was trained by this config on such a card, from its beginning to its end."""
    settings = dataclasses.asdict(config)
    return bool(facts.settings) and all(
        setting["device"] == card.name
        and setting["workload"] == config.workload
        and setting["model_name"] == config.model_name
        and setting["options"] == dict(config.options)
        and all(settings[name] == value for name, value in setting["train"].items())
        for setting in facts.settings
    )


def judge_fit(step: RehearsedStep, card: Card) -> Fit:
    """Return whether it fits."""
    needed = compute_needed_gib(step.total_bytes / GIB)
    return Fit(needed_gib=needed, missing_gib=max(0.0, needed - card.memory_gib))


def find_remedies(config: TrainingConfig, card: Card, rehearse: Rehearse) -> list[str]:
    """Return the changes that make a cell fit, each by itself; together with the next where none does."""
    texts: list[str] = []
    for words, changes in _list_changes(config):
        # The largest of several micro-batches is enough.
        if any(known.partition(":")[0] == words.partition(":")[0] for known in texts):
            continue
        try:
            fits = not judge_fit(rehearse(replace(config, **changes)), card).missing_gib
        except UnfitModelError:
            continue
        if fits:
            texts.append(words)
    return texts or _find_combination(config, card, rehearse)


def _find_combination(config: TrainingConfig, card: Card, rehearse: Rehearse) -> list[str]:
    smallest = [(words, changes) for words, changes in _list_changes(config) if "micro_batch_size" in changes][-1:]
    others = [(words, changes) for words, changes in _list_changes(config) if "micro_batch_size" not in changes]
    tried = list(smallest)
    for words, changes in others:
        # Of two strategies one can be taken.
        tried = [item for item in tried if not item[1].keys() & changes.keys()] + [(words, changes)]
        together = {name: value for _, part in tried for name, value in part.items()}
        try:
            if not judge_fit(rehearse(replace(config, **together)), card).missing_gib:
                return [" with ".join(part for part, _ in tried)]
        except UnfitModelError:
            tried.pop()
    return []


def _list_changes(config: TrainingConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changes that leave the work as it is, in the order in which they cost least."""
    shares = count_shares(config.strategy, config.world_size, config.options)
    size, per_rank = config.micro_batch_size, config.global_batch_size // shares
    if config.statistics_rows:
        # Another micro-batch would be other work.
        size = 0
    while (size := next((part for part in range(size // 2, 0, -1) if per_rank % part == 0), 0)) > 0:
        yield f"train.micro_batch_size: {size}", {"micro_batch_size": size}
    if config.activation_checkpointing == "none":
        yield "train.activation_checkpointing: layers", {"activation_checkpointing": "layers"}
    if config.world_size > 1 and not config.exact and config.precision != "fp16":
        for strategy in ("zero1", "fsdp2"):
            if strategy != config.strategy:
                options = config.options if {strategy, config.strategy} <= {"ddp", "zero1"} else {}
                yield f"strategy {strategy}: in this cell", {"strategy": strategy, "options": options}
