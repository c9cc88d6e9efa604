"""Updates computed by one process that stands in for any number of ranks: no wrapper and no communication.

Which rows are in which micro-batch, how they are padded, and the learning rate come from training/, as they do for the
ranks. Everything that makes an update of them is done a second time here: the loss, the number that it is divided by,
the sum of the gradients, clipping, and the calls of the optimizer.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.equivalence.reference import find_reference
from tasks.equivalence.reference.adapter import attach_factors, find_changed_base
from tasks.equivalence.reference.running_statistics import Forward, RunningStatistics
from tasks.process.failure import DivergedError
from training.config import TrainingConfig
from training.data.batches import IGNORED_LABEL, MicroBatch
from training.data.plan import SegmentPlan, StepPlan, make_micro_batch, make_segment_plan
from training.data.rows import Rows
from training.model.attention_kernels import choose_attention_kernels
from training.step.schedule import compute_rate_in_segment
from training.workloads import find_workload, open_training_rows

_LARGEST_CACHE = 2**30
"""Bytes of micro-batches' gradients that are kept to be added up in several orders."""
_STEPS_UNTIL_SCALE_GROWS = 2000
"""Of fp16, in which the gradient was finite: what torch's GradScaler waits for."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Part = list[Tensor | None]
"""Of one micro-batch, or of several: the gradient of every parameter."""
Order = Callable[[StepPlan, int], list[list[int]]]
"""Of a step's plan and number: the micro-batches (by index) that are added up one after another, group by group."""


@dataclass(frozen=True)
class Updated:
    """What the updates left; tensors by parameter name, on the CPU."""

    gradient: dict[str, Tensor]
    """Of the first step in which it is finite, before clipping."""
    gradient_step: int
    """That step, from 1."""
    weights: dict[str, Tensor]
    """After the last step."""


@dataclass(frozen=True)
class StepGradient:
    """What a step's micro-batches give at the weights as they are."""

    loss: float
    """Mean over the step's labels."""
    by_order: list[dict[str, Tensor]]
    """The reduced gradient before clipping, by parameter name, once for each order asked for."""
    statistics_by_order: list[dict[str, Tensor]]
    """In the same way, on the CPU: the running statistics after the step's forwards; empty where there are none."""


def order_as_one_rank(step: StepPlan, number: int) -> list[list[int]]:
    """Return one sum over all micro-batches from the last to the first, as one rank alone runs them."""
    return [list(reversed(range(len(step.micro_batches))))]


def shuffle(step: StepPlan, number: int) -> list[list[int]]:
    """Return one sum over all micro-batches in a random order, another one in every step."""
    return shuffle_with_seed(0, step, number)


def shuffle_with_seed(seed: int, step: StepPlan, number: int) -> list[list[int]]:
    """Return the same for this seed."""
    return [np.random.default_rng([seed, number]).permutation(len(step.micro_batches)).tolist()]


class OneProcess:
    """A process that computes the updates of a config's segments, from the base model's weights or from any others."""

    def __init__(self, config: TrainingConfig) -> None:
        torch.set_num_threads(config.threads_per_rank)
        choose_attention_kernels(torch.device(config.device))
        rows_per_rank = config.micro_batch_size
        if config.statistics_rows:
            # What the ranks have at once, batch normalisation has together.
            config = replace(config, micro_batch_size=config.statistics_rows)
        self._config = config
        self._workload = find_reference(config.workload)
        self._model = self._workload.load_model(config.model_dir, device=config.device, is_packed=bool(config.packing))
        self._base = dict(self._model.named_parameters())
        self._named = attach_factors(self._model, config)
        self._statistics = RunningStatistics(self._model)
        if self._statistics and config.world_size > 1:
            more: Any = self._workload
            more.deal_rows(self._model, rows_per_rank=rows_per_rank, num_ranks=config.world_size)
        parts = {**self._named, **self._statistics.get()}
        self.start_weights = {name: part.detach().to("cpu", copy=True) for name, part in parts.items()}
        """What is trained, as it begins, on the CPU: the base model's weights, or an adapter's factors; and the running
        statistics of batch normalisation."""
        self.statistic_names = list(self._statistics.get())
        """Of them, those of the running statistics."""
        self._steps = list(_generate_steps(config))
        self.num_steps = len(self._steps)
        """Steps of all segments."""
        self.start_over()

    def start_over(self) -> None:
        """Stand before the first step: the base model's weights, no moments, the first scale."""
        self.begin_at(self.start_weights)
        self._optimizer = _make_optimizer(list(self._named.values()), self._config)
        self._scale, self._num_finite = (65536.0 if self._config.precision == "fp16" else 1.0), 0

    def begin_at(self, weights: Mapping[str, Tensor]) -> None:
        """Take these weights; moments and scale stay. Raises ValueError if they are not of this model."""
        parts = {**self._named, **self._statistics.get()}
        for name, part in parts.items():
            if name not in weights or weights[name].shape != part.shape:
                raise ValueError(f"{name} is missing or has another shape")
        with torch.no_grad():
            for name, part in parts.items():
                part.copy_(weights[name])

    def list_changed(self, checkpoint: Path) -> list[str]:
        """Return what a checkpoint of an adapter has changed beside its factors; none where all is trained."""
        return find_changed_base(checkpoint, self._base, self._config) if self._config.adapter else []

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights as they are, where they are."""
        return {name: part.detach() for name, part in self._named.items()}

    def gradient(self, number: int, *orders: Order) -> StepGradient:
        """Return the gradient of step `number`, from 1, at the weights as they are; its sums go in these orders.

        As on N ranks, what a rank adds up is N times too large and then divided by N, which matters where fp16
        overflows; and exchanged in the dtype that the config asks for. Orders after the first also have the gradient
        of a batch normalisation rounded otherwise.
        """
        if self._statistics and len(orders) > 1:
            found = []
            for turn, order in enumerate(orders):
                self._statistics.multiply_out(is_wanted=turn > 0)
                found.append(self._compute_gradient(number, order))
            self._statistics.multiply_out(is_wanted=False)
            return StepGradient(
                loss=found[0].loss,
                by_order=[gradient for one in found for gradient in one.by_order],
                statistics_by_order=[statistics for one in found for statistics in one.statistics_by_order],
            )
        return self._compute_gradient(number, *orders)

    def _compute_gradient(self, number: int, *orders: Order) -> StepGradient:
        step, micro_batches = self._steps[number - 1].plan, self._make_micro_batches(number)
        num_labels = max(sum(int((part.labels != IGNORED_LABEL).sum()) for part in micro_batches), 1)
        losses: dict[int, float] = {}
        seen: dict[int, Forward] = {}

        def compute(index: int) -> Part:
            losses[index], part = self._compute_micro_batch_gradient(micro_batches[index], num_labels)
            seen[index] = self._statistics.look()
            return part

        bytes_of_all = 4 * sum(part.numel() for part in self._named.values()) * len(micro_batches)
        if len(orders) > 1 and self._config.device == "cpu" and bytes_of_all <= _LARGEST_CACHE:
            # On a GPU they are computed again: kernels that add in whatever order are part of the noise.
            kept = functools.cache(compute)

            def compute(index: int) -> Part:
                # What is added up is added to.
                return [None if part is None else part.clone() for part in kept(index)]

        by_order = [self._sum(order(step, number), compute) for order in orders[:1]]
        for order in orders[1:]:
            # Off the device before the next is computed there.
            by_order[-1] = {name: part.cpu() for name, part in by_order[-1].items()}
            by_order.append(self._sum(order(step, number), compute))
        statistics = self._statistics.advance([seen[index] for index in reversed(range(len(micro_batches)))])
        return StepGradient(
            loss=sum(losses.values()) / num_labels, by_order=by_order, statistics_by_order=[statistics] * len(by_order)
        )

    def apply(self, gradient: Mapping[str, Tensor], number: int) -> bool:
        """Clip the gradient and make the update of step `number`; return False, and make none, if it is not finite."""
        config, parameters = self._config, list(self._named.values())
        for name, parameter in self._named.items():
            found = gradient.get(name)
            parameter.grad = None if found is None else found.to(parameter.device, copy=True)
        is_finite = is_all_finite(gradient)
        if is_finite:
            torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm, foreach=True)
            for group in self._optimizer.param_groups:
                group["lr"] = self._steps[number - 1].learning_rate
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if config.precision == "fp16":
            self._rescale(is_finite)
        return is_finite

    def update(self, order: Order, *, on_step: Callable[[], None]) -> Updated:
        """Make all updates from the base model on, in this order; raises DivergedError if no gradient is finite."""
        self.start_over()
        first: tuple[int, dict[str, Tensor]] | None = None
        for number in range(1, self.num_steps + 1):
            (gradient,) = self.gradient(number, order).by_order
            if self.apply(gradient, number) and first is None:
                first = number, {name: part.to("cpu", copy=True) for name, part in gradient.items()}
            on_step()
        if first is None:
            raise DivergedError("no step of the sample has a finite gradient in one process; lower train.learning_rate")
        weights = {name: part.to("cpu", copy=True) for name, part in self.weights.items()}
        return Updated(gradient=first[1], gradient_step=first[0], weights=weights)

    def _make_micro_batches(self, number: int) -> list[MicroBatch]:
        config, step = self._config, self._steps[number - 1]
        return [
            make_micro_batch(step.source, step.plan, index, seq_len=config.seq_len, seed=(config.seed, number)).to(
                torch.device(config.device)
            )
            for index in range(len(step.plan.micro_batches))
        ]

    def _compute_micro_batch_gradient(self, part: MicroBatch, num_labels: int) -> tuple[float, Part]:
        """Return the sum of the losses, and the gradient of the mean over so many labels, scaled as on a rank."""
        config, dtype = self._config, _DTYPES[self._config.precision]
        torch.manual_seed(part.dropout_seed)
        with torch.autocast(config.device, dtype, enabled=dtype != torch.float32):
            loss = self._workload.loss_sum(self._model, part, chunk_rows=config.loss_chunk_rows)
        (loss * (self._num_ranks / num_labels) * self._scale).backward()
        gradient = [parameter.grad for parameter in self._named.values()]
        for parameter in self._named.values():
            parameter.grad = None
        return float(loss.detach()), gradient

    def _sum(self, groups: list[list[int]], gradient_of: Callable[[int], Part]) -> dict[str, Tensor]:
        """Return the sum over all groups of micro-batches, each what one rank adds up; in the memory of the first.

        On the device are never more gradients than three: the ranks' so far, one rank's, and a micro-batch's.
        """
        dtype = _DTYPES.get(self._config.options.get("gradient_hook", "none"), torch.float32)

        def sum_rank(group: list[int]) -> Part:
            mine = add_up(map(gradient_of, group))
            return [None if part is None else part.to(dtype).div_(self._num_ranks) for part in mine]

        # One rank's after the other's: all at once would be as many gradients in memory.
        total = add_up(map(sum_rank, groups))
        return {
            name: part.to(torch.float32).div_(self._scale)
            for name, part in zip(self._named, total, strict=True)
            if part is not None
        }

    @property
    def _num_ranks(self) -> int:
        return 1 if self._config.exact else self._config.world_size

    def _rescale(self, is_finite: bool) -> None:
        """Halve the scale of fp16 after an overflow, double it after long without one."""
        self._num_finite = self._num_finite + 1 if is_finite else 0
        if not is_finite:
            self._scale /= 2
        elif self._num_finite == _STEPS_UNTIL_SCALE_GROWS:
            self._scale, self._num_finite = self._scale * 2, 0


def add_up(parts: Iterable[Part]) -> Part:
    """Return the sum, in the tensors of the first; none is held any longer while the next is made."""
    total: Part | None = None
    for part in parts:
        total = part if total is None else _add_in_place(total, part)
        del part
    assert total is not None, "at least one"
    return total


def _add_in_place(left: Part, right: Iterable[Tensor | None]) -> Part:
    """Return the sum, which is in the tensors of `left` where that has one."""
    return [a if b is None else b if a is None else a.add_(b) for a, b in zip(left, right, strict=True)]


def is_all_finite(gradient: Mapping[str, Tensor]) -> bool:
    """Return whether every element of it is a finite number."""
    return all(bool(part.isfinite().all()) for part in gradient.values())


@dataclass(frozen=True)
class _Step:
    """One optimizer step of the run."""

    source: Rows
    segment_plan: SegmentPlan
    segment_step: int
    learning_rate: float

    @property
    def plan(self) -> StepPlan:
        return self.segment_plan.step(self.segment_step)


def _generate_steps(config: TrainingConfig) -> Iterator[_Step]:
    """Yield every step of the run."""
    workload = find_workload(config.workload)
    for segment in config.segments:
        source = open_training_rows(workload, config, segment)
        plan = make_segment_plan(source, config, segment)
        for number in range(1, plan.num_steps + 1):
            learning_rate = compute_rate_in_segment(config, segment, number, num_steps=plan.num_steps)
            yield _Step(source=source, segment_plan=plan, segment_step=number, learning_rate=learning_rate)


def _make_optimizer(parameters: list[Any], config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the config's optimizer, which decays matrices and kernels and leaves biases and norms alone."""
    matrices, vectors = [part for part in parameters if part.ndim > 1], [part for part in parameters if part.ndim <= 1]
    decays = ((matrices, config.weight_decay), (vectors, 0.0))
    groups = [{"params": parts, "weight_decay": decay} for parts, decay in decays if parts]
    if config.optimizer == "sgd":
        # One parameter after another in plain tensor operations, which is not the ranks' kernel.
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum, foreach=False, fused=False)
    return torch.optim.AdamW(groups, betas=(config.adam_beta1, config.adam_beta2), fused=True)
