"""Whether a cell fits on a card, and which one change of params.yaml would make it fit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tasks.machine.gpu_checks import compute_needed_gib
from tasks.rehearsal.cards import GIB, Card
from tasks.strategies import count_shares
from training.config import TrainingConfig
from training.process.failure import UnfitModelError
from training.rehearsal.rehearsed_step import RehearsedStep

Rehearse = Callable[[TrainingConfig], RehearsedStep]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a cell needs, and what there is."""

    needed_gib: float
    """Allocated, reserved in pieces beside it, and what a process takes of a GPU before its model."""
    missing_gib: float
    """0 where it fits."""


def judge_fit(step: RehearsedStep, card: Card) -> Fit:
    """Return whether it fits."""
    needed = compute_needed_gib(step.total_bytes / GIB)
    return Fit(needed_gib=needed, missing_gib=max(0.0, needed - card.memory_gib))


def find_remedies(config: TrainingConfig, card: Card, rehearse: Rehearse) -> list[str]:
    """Return the changes that make a cell fit, each by itself; together with the next where none does."""
    found: list[str] = []
    for words, changes in _list_changes(config):
        # The largest of several micro-batches is enough.
        if any(known.partition(":")[0] == words.partition(":")[0] for known in found):
            continue
        try:
            fits = not judge_fit(rehearse(replace(config, **changes)), card).missing_gib
        except UnfitModelError:
            continue
        if fits:
            found.append(words)
    return found or _find_combination(config, card, rehearse)


def _find_combination(config: TrainingConfig, card: Card, rehearse: Rehearse) -> list[str]:
    smallest = [(words, changes) for words, changes in _list_changes(config) if "micro_batch_size" in changes][-1:]
    others = [(words, changes) for words, changes in _list_changes(config) if "micro_batch_size" not in changes]
    tried = list(smallest)
    for words, changes in others:
        # Of two strategies one can be taken.
        tried = [one for one in tried if not one[1].keys() & changes.keys()] + [(words, changes)]
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
