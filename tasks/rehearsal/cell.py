"""One cell, rehearsed: its memory, whether it fits, and how fast it could be."""

from dataclasses import dataclass

import numpy as np

from tasks.params import Params
from tasks.rehearsal.cards import Card
from tasks.rehearsal.fitting import Fit, find_remedies, judge_fit
from tasks.rehearsal.inputs import Inputs
from tasks.rehearsal.recorded import find_recorded_gib
from tasks.rehearsal.speed import StepLoad
from tasks.strategies import count_shares
from training.config import TrainingConfig
from training.data.plan import SegmentPlan, make_segment_plan
from training.rehearsal.rehearsed_step import RehearsedStep, rehearse_step
from training.workloads import find_workload, open_training_rows

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
        found = (rehearse_step(changed, rank=rank, capability=card.capability) for rank in ranks)
        return max(found, key=lambda step: step.total_bytes)

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
    workload, found = find_workload(config.workload), []
    for segment in config.segments:
        plan = make_segment_plan(open_training_rows(workload, config, segment), config, segment)
        steps = np.linspace(1, plan.num_steps, min(plan.num_steps, _MOST_STEPS_LOOKED_AT)).astype(int).tolist()
        found += [_weigh_numbered(plan, number, config, is_image=workload.UNIT == "image") for number in steps]
    positions, num_micro_batches, tokens = np.mean(found, axis=0).tolist()
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
