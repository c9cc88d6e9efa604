"""A few updates computed by one process that stands in for any number of ranks: no wrapper and no communication.

Which rows are in which micro-batch, how they are padded, and the learning rate come from training/, as they do for the
ranks. Everything that makes an update of them is done a second time here: the loss, the number that it is divided by,
the sum of the gradients, clipping, and the calls of the optimizer.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.stage.failure import DivergedError
from training.config import TrainingConfig
from training.data import IGNORED_LABEL, MicroBatch
from training.plan import StepPlan, micro_batch_of, plan_of
from training.rows import training_rows
from training.schedule import learning_rate_at

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

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


def as_ranks(config: TrainingConfig) -> Order:
    """Return the order of the config's ranks: each adds up what it was dealt, then the ranks are added, in rank order.

    In exact mode there is one sum only. Each micro-batch is in the order exactly once, whatever the plan deals out.
    """

    def order(step: StepPlan, number: int) -> list[list[int]]:
        if config.exact:
            return as_one_rank(step, number)
        left = set(range(len(step.micro_batches)))
        groups: list[list[int]] = []
        for rank in range(config.world_size):
            groups.append([])
            for index in step.dealt_to(rank, config.world_size):
                if index in left:
                    left.remove(index)
                    groups[-1].append(index)
        groups[-1] += sorted(left)
        return [group for group in groups if group]

    return order


def as_one_rank(step: StepPlan, number: int) -> list[list[int]]:
    """Return one sum over all micro-batches from the last to the first, as one rank alone runs them."""
    return [list(reversed(range(len(step.micro_batches))))]


def shuffled(step: StepPlan, number: int) -> list[list[int]]:
    """Return one sum over all micro-batches in a random order, another one in every step."""
    return [np.random.default_rng(number).permutation(len(step.micro_batches)).tolist()]


def other_orders(config: TrainingConfig) -> list[Order]:
    """Return orders that are as right as the ranks'; what they give differs by rounding alone.

    Where gradients are exchanged in 16 bit each rank's are rounded, so that what a rank adds up stays together.
    """
    if config.options.get("gradient_hook", "none") == "none":
        return [as_one_rank, shuffled]
    ranks = as_ranks(config)
    return [
        lambda step, number: [group[::-1] for group in reversed(ranks(step, number))],
        lambda step, number: [
            np.random.default_rng([number, rank]).permutation(group).tolist()
            for rank, group in enumerate(ranks(step, number))
        ],
    ]


class OneProcess:
    """A process that applies the updates of a config from the base model's weights, as often as asked."""

    def __init__(self, config: TrainingConfig) -> None:
        torch.set_num_threads(config.threads_per_rank)
        self._config = config
        self._workload: Any = importlib.import_module(f"tasks.reference.{config.workload}")
        self._model = self._workload.load_model(config.model_dir, device=config.device, is_packed=config.packing)
        self._named = {name: part for name, part in self._model.named_parameters() if part.requires_grad}
        self.start_weights = {name: part.detach().to("cpu", copy=True) for name, part in self._named.items()}
        """The base model's weights, on the CPU."""

    def update(self, order: Order, *, on_step: Callable[[], None]) -> Updated:
        """Apply an update per step of the config's one segment; sums go in this order; `on_step` is called after each.

        Raises DivergedError if no gradient is finite.
        """
        config, parameters = self._config, list(self._named.values())
        with torch.no_grad():
            for name, part in self._named.items():
                part.copy_(self.start_weights[name])
        optimizer = _optimizer(parameters, config)
        scaler = torch.amp.GradScaler(config.device, enabled=config.precision == "fp16")
        gradient: dict[str, Tensor] = {}
        gradient_step = 0
        for number, step, micro_batches, learning_rate in _steps(config):
            self._sum_gradients([[micro_batches[index] for index in group] for group in order(step, number)], scaler)
            scaler.unscale_(optimizer)
            parts = {name: part.grad for name, part in self._named.items() if part.grad is not None}
            is_finite = all(bool(part.isfinite().all()) for part in parts.values())
            if is_finite and not gradient_step:
                gradient_step = number
                gradient = {name: part.to("cpu", copy=True) for name, part in parts.items()}
            torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm, foreach=True)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            if is_finite:
                scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            on_step()
        if not gradient_step:
            raise DivergedError("no step of the sample has a finite gradient in one process; lower train.learning_rate")
        weights = {name: part.detach().to("cpu", copy=True) for name, part in self._named.items()}
        return Updated(gradient=gradient, gradient_step=gradient_step, weights=weights)

    def _sum_gradients(self, groups: list[list[MicroBatch]], scaler: torch.amp.GradScaler) -> None:
        """Leave in every parameter's `grad` the gradient of the mean loss over the labels of all groups.

        As on N ranks, what a rank adds up is N times too large and then divided by N, which matters where fp16
        overflows; and exchanged in the dtype that the config asks for.
        """
        config, parameters = self._config, list(self._named.values())
        dtype = _DTYPES[config.precision]
        scale = 1 if config.exact else config.world_size
        num_labels = sum(int((part.labels != IGNORED_LABEL).sum()) for group in groups for part in group)
        exchanged_as = _DTYPES.get(config.options.get("gradient_hook", "none"), torch.float32)
        totals: list[Tensor | None] = [None] * len(parameters)
        for group in groups:
            for part in group:
                torch.manual_seed(part.dropout_seed)
                with torch.autocast(config.device, dtype, enabled=dtype != torch.float32):
                    loss = self._workload.loss_sum(self._model, part, chunk_rows=config.loss_chunk_rows)
                scaler.scale(loss * (scale / max(num_labels, 1))).backward()
            for index, parameter in enumerate(parameters):
                total, mine = totals[index], parameter.grad
                if mine is not None:
                    mine = mine.to(exchanged_as).div_(scale)
                    totals[index] = mine if total is None else total.add_(mine)
                parameter.grad = None
        for parameter, total in zip(parameters, totals, strict=True):
            parameter.grad = None if total is None else total.to(parameter.dtype)


def _steps(config: TrainingConfig) -> Iterator[tuple[int, StepPlan, list[MicroBatch], float]]:
    """Yield number, plan, micro-batches on the device and learning rate of every step."""
    (segment,) = config.segments
    workload: Any = importlib.import_module(f"training.workloads.{config.workload}")
    source = training_rows(workload, config, segment)
    plan = plan_of(source, config, segment)
    for number in range(1, plan.num_steps + 1):
        step = plan.step(number)
        micro_batches = [
            micro_batch_of(source, step, index, seq_len=config.seq_len, seed=(config.seed, number))
            for index in range(len(step.micro_batches))
        ]
        learning_rate = learning_rate_at(
            number, plan.num_steps, peak=config.learning_rate, schedule=config.schedule,
            warmup_steps=config.warmup_steps,
        )  # fmt: skip
        yield number, step, [part.to(torch.device(config.device)) for part in micro_batches], learning_rate


def _optimizer(parameters: list[Any], config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the config's optimizer, which decays matrices and kernels and leaves biases and norms alone."""
    matrices, vectors = [part for part in parameters if part.ndim > 1], [part for part in parameters if part.ndim <= 1]
    decays = ((matrices, config.weight_decay), (vectors, 0.0))
    groups = [{"params": parts, "weight_decay": decay} for parts, decay in decays if parts]
    if config.optimizer == "sgd":
        # One parameter after another in plain tensor operations, which is not the ranks' kernel.
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum, foreach=False, fused=False)
    return torch.optim.AdamW(groups, fused=True)
