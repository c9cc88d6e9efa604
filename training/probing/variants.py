"""A cell's step and the counterfactuals of it: built once, with the data that they run on.

Only the stage `measure` uses this; a training never does.
"""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from training.config import TrainingConfig
from training.data.batches import MicroBatch, Rows, prefetch_micro_batches
from training.data.plan import SegmentPlan, make_micro_batches
from training.model.adapter import make_plain
from training.model.layers import explain_failed_compilation
from training.process.distributed import Ranks
from training.step.replica import Replica
from training.step.strategy import Strategy, find_strategy
from training.workloads import Workload, find_workload, open_segment


class SharedState:
    """What the first variant of a base model has; later ones of that model take it over."""

    def __init__(self) -> None:
        self._weights: dict[str, dict[str, Tensor]] = {}
        """Folder of a base model -> name -> the weight, where it is."""
        self._moments: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        """Folder and optimizer -> name of the parameter -> what the optimizer keeps of it."""

    def lend(self, workload: Workload) -> Workload:
        """Return the workload, whose models take over the weights that are there when they are prepared."""

        def prepare(model: nn.Module, config: TrainingConfig) -> None:
            workload.prepare(model, config)
            kept = self._weights.get(str(config.model_dir), {})
            for name, part in model.named_parameters():
                if name in kept:
                    part.data = kept[name]

        lending: Any = SimpleNamespace(**{**vars(workload), "prepare": prepare})
        result: Workload = lending
        return result

    def take_in(self, replica: Replica, config: TrainingConfig) -> None:
        """Share the weights and moments of a model that was just built."""
        kept = self._weights.setdefault(str(config.model_dir), {})
        moments = self._moments[f"{config.optimizer} {config.momentum} {config.model_dir}"]
        updated = {part for group in replica.optimizer.param_groups for part in group["params"]}
        state = replica.optimizer.state
        for name, part in replica.module.named_parameters():
            # Not what waits in 4 bits: a model begins with all in fp32, and rounds it itself.
            if part.is_floating_point():
                kept.setdefault(make_plain(name), part.data)
            if part in updated:
                state[part] = moments.setdefault(name, state[part])

    def clear(self) -> None:
        """Forget everything."""
        self._weights.clear()
        self._moments.clear()


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A step as it is trained, or a counterfactual of it: one thing left out."""

    strategy: str | None = None
    """Name of a folder in training/strategies/; None: that of the cell."""
    communicates: bool = True
    """False: every rank keeps its own gradient, nothing is exchanged; for a strategy that offers this."""
    is_independent: bool = False
    """True: every rank runs its share of the micro-batches as one process would, and knows nothing of the others."""
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of TrainingConfig that differ from the cell's."""


@dataclass(frozen=True, kw_only=True)
class BuiltVariant:
    """A variant that is ready to run."""

    workload: Workload
    strategy: Strategy
    shares: tuple[int, int]
    """Which share of a step's micro-batches this rank runs, from 0, and into how many they are dealt."""
    config: TrainingConfig
    source: Rows
    plan: SegmentPlan
    warm_up_seconds: float
    """What came before the first step, compilation included."""


def build_variant(
    variant: Variant, config: TrainingConfig, ranks: Ranks, shared: SharedState | None = None
) -> BuiltVariant:
    """Build a variant, with weights and moments that are `shared`; run a few steps, which cost more than later ones."""
    shared = shared or SharedState()
    overrides: dict[str, Any] = {
        name: Path(value) if name == "model_dir" else value for name, value in variant.overrides.items()
    }
    config = dataclasses.replace(config, **overrides)
    torch.set_num_threads(config.threads_per_rank)
    workload = find_workload(config.workload)
    model = workload.load_model(config.model_dir)
    lending = shared.lend(workload)
    is_alone = variant.is_independent
    strategy = find_strategy("single" if is_alone else variant.strategy or config.strategy).build(
        model, lending, config, dataclasses.replace(ranks, rank=0, world_size=1) if is_alone else ranks,
        communicates=variant.communicates,
    )  # fmt: skip
    shares = (ranks.rank, ranks.world_size) if is_alone else (strategy.data_rank, strategy.data_world_size)
    if strategy.has_replica:
        shared.take_in(strategy.replica, config)
    source, plan = open_segment(workload, config, config.segments[0])
    made = BuiltVariant(
        workload=workload, strategy=strategy, shares=shares, config=config, source=source, plan=plan,
        warm_up_seconds=0.0,
    )  # fmt: skip
    micro_batches = [part.to(ranks.device) for part in list_micro_batches(made, 1)]
    ranks.synchronize()
    started = time.perf_counter()
    with explain_failed_compilation():
        strategy.warm_up(micro_batches[-1])
    ranks.synchronize()
    made = dataclasses.replace(made, warm_up_seconds=time.perf_counter() - started)
    for _ in range(2):
        strategy.train_step(micro_batches, num_targets=plan.step(1).num_targets, learning_rate=0.0)
    return made


def list_micro_batches(made: BuiltVariant, step: int) -> list[MicroBatch]:
    rank, world_size = made.shares
    return list(
        make_micro_batches(
            made.source, made.plan.step(step), rank=rank, world_size=world_size,
            seq_len=made.config.seq_len, seed=(made.config.seed, step),
        )
    )  # fmt: skip


def load_micro_batches(
    made: BuiltVariant,
    ranks: Ranks,
    steps: list[int],
    data: str,
    *,
    on_ahead: Callable[[Future[list[MicroBatch]]], None] = lambda _: None,
) -> Iterator[tuple[list[MicroBatch], int, float]]:
    """Yield (micro-batches on the device, step, seconds waited for the loader) for every step.

    `on_ahead`: training/data/batches.py, where there is a loader.
    """
    if data == "loader":
        ahead = prefetch_micro_batches(
            lambda turn: list_micro_batches(made, steps[turn]), range(len(steps)), ranks.device, on_ahead=on_ahead
        )
        for turn, parts, waited in ahead:
            yield parts, steps[turn], waited
        return
    distinct = {step: list_micro_batches(made, step) for step in dict.fromkeys(steps)}
    if ranks.device.type == "cuda":
        distinct = {step: [part.pin_memory() for part in parts] for step, parts in distinct.items()}
    if data == "device":
        distinct = {step: [part.to(ranks.device) for part in parts] for step, parts in distinct.items()}
    for step in steps:
        yield [part.to(ranks.device) for part in distinct[step]], step, 0.0
