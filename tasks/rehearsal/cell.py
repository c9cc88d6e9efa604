"""One cell, rehearsed: its memory, whether it fits, and how fast it could be."""

from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from tasks.machine.gpu_checks import compute_needed_gib
from tasks.params import Params
from tasks.rehearsal.cards import GIB, Card
from tasks.rehearsal.inputs import Inputs
from tasks.rehearsal.speed import StepLoad
from training.config import TrainingConfig
from training.process.failure import UnfitModelError
from training.registry import list_strategies
from training.rehearsal.rehearsed_step import RehearsedStep, rehearse_largest_rank
from training.strategies import count_shares, find_options, find_traits
from training.workloads import find_workload, open_segment

_MOST_STEPS_LOOKED_AT = 50
_Change = tuple[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class RehearsedCell:
    """What was found of a cell."""

    name: str
    config: TrainingConfig
    step: RehearsedStep
    missing_gib: float
    """What the card has too little; 0 where it fits."""
    remedies: list[str] | None
    """Changes that make it fit; empty where it does, and where none was found; None where none was sought."""
    num_missing_cards: int
    load: StepLoad

    @property
    def needed_gib(self) -> float:
        """Allocated, reserved in pieces beside it, and what a process takes of a GPU before its model."""
        return compute_needed_gib(self.step.total_bytes / GIB)


def rehearse_cell(
    name: str, params: Params, inputs: Inputs, *, card: Card, num_cards: int, seeks_remedies: bool = True
) -> RehearsedCell:
    """Return what is found; raises what building the strategy raises."""
    config, spread = inputs.make_config(params, name), params.cells[name]
    rehearse = partial(rehearse_largest_rank, capability=card.capability)
    step = rehearse(config)
    missing = compute_missing_gib(step, card)
    return RehearsedCell(
        name=name,
        config=config,
        step=step,
        missing_gib=missing,
        remedies=(find_remedies(config, card, rehearse) if missing else []) if seeks_remedies else None,
        num_missing_cards=0 if spread.oversubscribe else max(0, spread.ranks_per_node - num_cards),
        load=weigh_step(config, step),
    )


def compute_missing_gib(step: RehearsedStep, card: Card) -> float:
    """Return what the card has too little for the step; 0 where it fits."""
    return max(0.0, compute_needed_gib(step.total_bytes / GIB) - card.memory_gib)


def weigh_step(config: TrainingConfig, step: RehearsedStep) -> StepLoad:
    """Return what the first rank runs in a step, on average over steps of all segments."""
    workload, results = find_workload(config.workload), []
    for segment in config.segments:
        _, plan = open_segment(workload, config, segment)
        for number in np.linspace(1, plan.num_steps, min(plan.num_steps, _MOST_STEPS_LOOKED_AT)).astype(int).tolist():
            planned = plan.step(number)
            places = planned.select_for_rank(0, config.world_size)
            mine = [planned.micro_batches[place] for place in places if place is not None]
            if workload.UNIT == "image":
                positions = sum(map(len, mine))
            elif planned.is_packed:
                positions = sum(int(plan.lengths[part].sum()) for part in mine)
            else:
                positions = sum(len(part) * int(plan.lengths[part].max()) for part in mine)
            results.append((positions, len(mine), planned.num_tokens))
    positions_per_step, num_micro_batches, tokens = np.mean(results, axis=0).tolist()
    copies = find_traits(config.strategy).count_copies(config.world_size, config.options)
    return StepLoad(
        work=step.work,
        positions_rehearsed=step.num_positions,
        positions=positions_per_step,
        num_micro_batches=num_micro_batches,
        tokens=tokens,
        num_updated=step.num_parameters * copies.optimizer / config.world_size,
        world_size=config.world_size,
        precision=config.precision,
        is_modelled=count_shares(config.strategy, config.world_size, config.options) == config.world_size,
    )


def find_remedies(config: TrainingConfig, card: Card, rehearse: Callable[[TrainingConfig], RehearsedStep]) -> list[str]:
    """Return the changes that make a cell fit, each by itself; together with the next where none does."""

    def fits(changes: Mapping[str, Any]) -> bool | None:
        with suppress(UnfitModelError):
            return not compute_missing_gib(rehearse(replace(config, **changes)), card)
        return None

    sizes, others = _list_changes(config)
    # The largest of several micro-batches is enough.
    alone = list(islice((words for words, changes in sizes if fits(changes)), 1))
    if alone := [*alone, *(words for words, changes in others if fits(changes))]:
        return alone
    tried = dict(sizes[-1:])
    for words, changes in others:
        # Of two strategies one can be taken.
        tried = {known: item for known, item in tried.items() if not item.keys() & changes.keys()} | {words: changes}
        if (fit := fits(ChainMap(*tried.values()))) is None:
            del tried[words]
        elif fit:
            return [" with ".join(tried)]
    return []


def _list_changes(config: TrainingConfig) -> tuple[list[_Change], list[_Change]]:
    """Return changes that leave the work as it is, first what they are called: smaller micro-batches, and others."""
    per_rank = config.global_batch_size // count_shares(config.strategy, config.world_size, config.options)
    # Where batch normalisation is over a micro-batch another one would be other work.
    sizes = range(0 if config.statistics_rows else config.micro_batch_size // 2, 0, -1)
    others: list[_Change] = []
    if config.activation_checkpointing == "none":
        others.append(("train.activation_checkpointing: layers", {"activation_checkpointing": "layers"}))
    if config.world_size > 1 and not config.exact and config.precision != "fp16":
        for strategy in (item for item in _list_sharded(config.world_size) if item != config.strategy):
            is_alike = find_options(strategy).OPTIONS == find_options(config.strategy).OPTIONS
            options = config.options if is_alike else {}
            others.append((f"strategy {strategy}: in this cell", {"strategy": strategy, "options": options}))
    return [
        (f"train.micro_batch_size: {size}", {"micro_batch_size": size}) for size in sizes if per_rank % size == 0
    ], others


def _list_sharded(world_size: int) -> list[str]:
    """Return the strategies whose ranks have rows of their own and share the update, those that save most last."""
    traits_of = {name: find_traits(name) for name in list_strategies()}
    copies = {
        name: traits.count_copies(world_size, {})
        for name, traits in traits_of.items()
        if traits.no_rehearsal is None and traits.count_shares(world_size, {}) == world_size
    }
    shared = [name for name in copies if copies[name].optimizer < world_size]
    return sorted(shared, key=lambda name: -copies[name].parameters)
