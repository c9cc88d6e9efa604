"""A training by one process, step by step, whose batch, rate and optimizer can be others than the workload's own.

Model, rows, plan, loss, optimizer, clipping and rate are those of training/; a test holds its updates to the strategy
`single`. What is here is the order of these, so that a training can be looked at between any two steps.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.efficiency.recipe import Recipe
from training.config import SegmentConfig, TrainingConfig
from training.data.batches import MicroBatch
from training.data.plan import SegmentPlan, make_micro_batch, make_segment_plan
from training.data.rows import Rows
from training.model.attention_kernels import choose_attention_kernels
from training.step.optimizer import build_optimizer, group_parameters
from training.step.schedule import compute_learning_rate
from training.workloads import Workload, find_workload, open_training_rows

_LARGEST_MICRO_BATCH = 32
"""Rows of one forward: the update is the same for any, and more rows at once are faster."""
_WITHOUT_END = 10**9
"""Steps of a schedule that does not decay."""


@dataclass(frozen=True)
class Step:
    """One update that is to be made."""

    plan: SegmentPlan
    source: Rows
    number: int
    """Of the segment, from 1."""
    learning_rate: float
    num_samples: int


def apply_recipe(config: TrainingConfig, recipe: Recipe) -> TrainingConfig:
    """Return the config of a workload's own training as the recipe changes it."""
    factor = recipe.factor
    warmup = {"samples": -(-config.warmup_steps // factor), "steps": config.warmup_steps, "none": 0}[recipe.warmup]
    decays = {"momentum": config.momentum, "adam_beta1": config.adam_beta1, "adam_beta2": config.adam_beta2}
    if recipe.memory == "samples":
        # What a step keeps is what `factor` steps of the workload's batch would.
        decays = {name: decay**factor for name, decay in decays.items()}
    return dataclasses.replace(
        config, **decays, seed=recipe.seed, warmup_steps=warmup, learning_rate=config.learning_rate * recipe.growth,
        global_batch_size=config.global_batch_size * factor,
        micro_batch_size=min(config.global_batch_size * factor, _LARGEST_MICRO_BATCH),
    )  # fmt: skip


class Trainee:
    """A model in training."""

    def __init__(self, config: TrainingConfig, recipe: Recipe) -> None:
        """`config`: the workload's own, of one pass over each range."""
        choose_attention_kernels(torch.device("cpu"))
        torch.set_num_threads(config.threads_per_rank)
        self.workload: Workload = find_workload(config.workload)
        self.recipe, self.own, self.config = recipe, config, apply_recipe(config, recipe)
        self.model = self.workload.load_model(config.model_dir)
        self.workload.prepare(self.model, self.config)
        self.model.train()
        self.parameters = [part for part in self.model.parameters() if part.requires_grad]
        groups = group_parameters(self.parameters, self.config)
        self.optimizer = build_optimizer(
            [{"params": part, "weight_decay": decay} for decay, part in groups], self.config
        )
        self.num_steps = self.num_samples = 0
        self.norms: list[tuple[int, float]] = []
        """(Samples, norm of the gradient before clipping) of every step."""

    def list_steps(self) -> Iterator[Step]:
        """Yield the steps of the whole training, in order."""
        config, kind, begin = self.config, self.recipe.schedule, 0
        total = sum(1 for _ in self._cut_segments()) if kind == "run" else 0
        for done, (plan, source, number) in enumerate(self._cut_segments()):
            if number == 1:
                begin = done
            place, span = {
                "constant": (done + 1, _WITHOUT_END),
                "run": (done + 1, total),
                "segment": (done - begin + 1, plan.num_steps),
            }[kind]
            rate = compute_learning_rate(
                place, span, peak=config.learning_rate, schedule="constant" if kind == "constant" else config.schedule,
                floor=config.schedule_floor, warmup_steps=config.warmup_steps,
            )  # fmt: skip
            yield Step(plan, source, number, rate, len(_rows_of(plan, number)))

    def step(self, step: Step) -> float:
        """Make an update; return the mean loss of its labels before it."""
        planned, total = step.plan.step(step.number), 0.0
        self.num_steps += 1
        weight = 1 / max(planned.num_targets, 1)
        for index in range(len(planned.micro_batches)):
            part = make_micro_batch(
                step.source, planned, index, seq_len=self.config.seq_len, seed=(self.config.seed, self.num_steps)
            )
            loss = self.compute_loss(part, weight=weight)
            (loss * weight).backward()
            total += float(loss.detach()) * weight
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm, foreach=True)
        for group in self.optimizer.param_groups:
            group["lr"] = step.learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_samples += step.num_samples
        self.norms.append((step.num_samples, float(norm)))
        return total

    def compute_loss(self, part: MicroBatch, *, weight: float = 1.0) -> Tensor:
        """Return the sum of a micro-batch's losses, which is going to be multiplied by `weight`: ()."""
        torch.manual_seed(part.dropout_seed)
        return self.workload.loss_sum(
            self.model, part, scale=torch.full((), weight), chunk_rows=self.config.loss_chunk_rows
        )

    def evaluate(self, folder: Path, *, most_rows: int) -> float:
        """Return the mean loss (nats per label) on held-out rows: of more than `most_rows`, on so many drawn once."""
        source: Any = self.workload.open_slice(folder)
        rows = np.sort(np.random.default_rng(0).permutation(len(source))[:most_rows])
        rows = rows[np.argsort(-source.lengths(self.config.seq_len)[rows], kind="stable")]
        self.model.eval()
        total = 0.0
        with torch.inference_mode():
            for start in range(0, len(rows), _LARGEST_MICRO_BATCH):
                some = rows[start : start + _LARGEST_MICRO_BATCH].tolist()
                found = self.workload.metrics(self.model, source.collate(some, seq_len=self.config.seq_len))
                total += float(found["loss"])
        self.model.train()
        return total / int(source.num_targets(self.config.seq_len)[rows].sum())

    def plan_pass(self, number: int, config: TrainingConfig) -> tuple[SegmentPlan, Rows]:
        """Return pass `number` over the first range, in the batches of `config`."""
        return _plan(self.workload, config, self.own.segments[0], number)

    def _list_segments(self) -> Iterator[tuple[SegmentPlan, Rows]]:
        ranges, passes = self.own.segments, self.recipe.passes
        numbered = (
            ((part, number) for part in ranges for number in range(1, passes + 1))
            if passes
            else ((part, number) for number in itertools.count(1) for part in ranges)
        )
        for part, number in numbered:
            yield _plan(self.workload, self.config, part, number)

    def _cut_segments(self) -> Iterator[tuple[SegmentPlan, Rows, int]]:
        """Yield every step's plan, rows and number in its segment, until all samples are spent."""
        spent = 0
        for plan, source in self._list_segments():
            for number in range(1, plan.num_steps + 1):
                if spent >= self.recipe.samples:
                    return
                spent += len(_rows_of(plan, number))
                yield plan, source, number


def _plan(workload: Workload, config: TrainingConfig, part: SegmentConfig, number: int) -> tuple[SegmentPlan, Rows]:
    segment = dataclasses.replace(part, epoch=number)
    source = open_training_rows(workload, config, segment)
    return make_segment_plan(source, config, segment), source


def _rows_of(plan: SegmentPlan, number: int) -> np.ndarray:
    return plan.order[(number - 1) * plan.global_batch_size : number * plan.global_batch_size]
