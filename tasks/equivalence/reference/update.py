"""Gradients computed by one process that stands in for any number of ranks: no wrapper and no communication.

Which rows are in which micro-batch, how they are padded, and the learning rate come from training/, as they do for the
ranks. Everything that makes a gradient of them is done a second time here: the seeds of dropout, the loss, the number
that it is divided by, and the sum.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tasks.equivalence.reference import find_reference
from tasks.equivalence.reference.adapter import attach_factors, find_changed_base
from training.config import SegmentConfig, TrainingConfig
from training.data.augmentation import Augmentation
from training.data.batches import IGNORED_LABEL, MicroBatch, Rows
from training.data.plan import SegmentPlan, StepPlan, make_micro_batch
from training.model.attention_kernels import choose_attention_kernels
from training.step.schedule import compute_rate_in_segment
from training.strategies import count_shares
from training.workloads import find_workload, open_segment

Forward = list[tuple[Tensor, Tensor]]
"""Of each layer: mean and unbiased variance of the rows, (num_channels,)."""
_KINDS = ("running_mean", "running_var")


class RunningStatistics:
    """Those of a model's layers; nothing where it has none."""

    def __init__(self, model: Any) -> None:
        self._layers = {name: part for name, part in model.named_modules() if hasattr(part, _KINDS[0])}

    def __bool__(self) -> bool:
        """Return whether the model has any."""
        return bool(self._layers)

    def get(self) -> dict[str, Tensor]:
        """Return them by name, where they are."""
        return {f"{name}.{kind}": getattr(part, kind) for name, part in self._layers.items() for kind in _KINDS}

    def multiply_out(self, *, is_wanted: bool) -> None:
        """Have the layers' gradient rounded otherwise, or as at first."""
        for layer in self._layers.values():
            layer.multiplies_out = is_wanted

    def look(self) -> Forward:
        """Return what the last forward was normalised by."""
        return [layer.seen for layer in self._layers.values()]

    def advance(self, forwards: Iterable[Forward]) -> dict[str, Tensor]:
        """Return, on the CPU, what these forwards, in their order, make of them; they stay as they are."""
        results = {name: part.to("cpu", copy=True) for name, part in self.get().items()}
        for forward in forwards:
            for (name, layer), new in zip(self._layers.items(), forward, strict=True):
                for kind, value in zip(_KINDS, new, strict=True):
                    results[f"{name}.{kind}"].mul_(1 - layer.momentum).add_(value.cpu(), alpha=layer.momentum)
        return results


_LARGEST_CACHE = 2**30
"""Bytes of micro-batches' gradients that are kept to be added up in several orders."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Precision = Literal["fp32", "bf16", "fp16"]
Part = list[Tensor | None]
"""Of one micro-batch, or of several: the gradient of every parameter."""
Order = Callable[[StepPlan, int], list[list[int]]]
"""Of a step's plan and number: the micro-batches (by index) that are added up one after another, group by group."""


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
    return [np.random.default_rng([0, number]).permutation(len(step.micro_batches)).tolist()]


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
        self._scale = 1.0

    def begin_at(self, weights: Mapping[str, Tensor], *, scale: float = 1.0) -> None:
        """Take these weights and this scale of the loss. Raises ValueError if they are not of this model."""
        parts = {**self._named, **self._statistics.get()}
        for name, part in parts.items():
            if name not in weights or weights[name].shape != part.shape:
                raise ValueError(f"{name} is missing or has another shape")
        with torch.no_grad():
            for name, part in parts.items():
                part.copy_(weights[name])
        self._scale = scale

    def list_changed(self, weights: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> list[str]:
        """Return which merged weights of an adapter are not the base model's with the factors' product added."""
        return find_changed_base(weights, factors, self._base, self._config)

    def get_learning_rate(self, number: int) -> float:
        """Return the rate of step `number`, from 1."""
        return self._steps[number - 1].learning_rate

    def get_plan(self, number: int) -> StepPlan:
        """Return which rows are in the micro-batches of step `number`."""
        return self._steps[number - 1].plan

    def compute_plain_loss(self, number: int) -> float:
        """Return the mean loss of a step in fp32 without dropout, at the weights as they are: of its micro-batches."""
        micro_batches = self._make_micro_batches(number)
        with self._evaluate():
            losses = [
                float(self._workload.loss_sum(self._model, part, chunk_rows=self._config.loss_chunk_rows))
                for part in micro_batches
            ]
        return sum(losses) / _count_labels(micro_batches)

    def compute_rows_loss(self, number: int) -> float:
        """Return the same loss of the step's rows, one by one, read without the code of the ranks."""
        config, step = self._config, self._steps[number - 1]
        options, more = dict[str, Any](), dict[str, Any]()
        if config.augment != "none":
            epoch = step.segment.epoch
            options["augmentation"] = Augmentation(kind=config.augment, seed=config.seed, epoch=epoch)
        if config.statistics_rows:
            more["statistics_rows"] = config.statistics_rows
        rows = np.concatenate(step.plan.micro_batches).tolist()
        read = self._workload.read_rows(step.segment.slice_dir, rows, seq_len=config.seq_len, **options)
        with self._evaluate():
            total, num_labels = self._workload.compute_rows_loss(self._model, read, **more)
        return total / max(num_labels, 1)

    @contextmanager
    def _evaluate(self) -> Iterator[None]:
        """Have no dropout; batch normalisation goes on with the statistics of its rows."""
        self._model.train(self._config.statistics_rows > 0)
        try:
            with torch.no_grad():
                yield
        finally:
            self._model.train()

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """What is trained, as it is, where it is."""
        return self._named

    def gradient(self, number: int, *orders: Order, precision: Precision | None = None) -> StepGradient:
        """Return the gradient of step `number`, from 1, at the weights as they are; its sums go in these orders.

        As on N ranks, what a rank adds up is N times too large and then divided by N, which matters where fp16
        overflows; and exchanged in the dtype that the config asks for. Orders after the first also have the gradient
        of a batch normalisation rounded otherwise. `precision`: another one than the config's.
        """
        if precision is not None:
            config, scale = self._config, self._scale
            self._config, self._scale = replace(config, precision=precision), 1.0
            try:
                return self.gradient(number, *orders)
            finally:
                self._config, self._scale = config, scale
        if self._statistics and len(orders) > 1:
            results = []
            for turn, order in enumerate(orders):
                self._statistics.multiply_out(is_wanted=turn > 0)
                results.append(self._compute_gradient(number, order))
            self._statistics.multiply_out(is_wanted=False)
            return StepGradient(
                loss=results[0].loss,
                by_order=[gradient for result in results for gradient in result.by_order],
                statistics_by_order=[statistics for result in results for statistics in result.statistics_by_order],
            )
        return self._compute_gradient(number, *orders)

    def _compute_gradient(self, number: int, *orders: Order) -> StepGradient:
        step, micro_batches = self._steps[number - 1].plan, self._make_micro_batches(number)
        num_labels = _count_labels(micro_batches)
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
        statistics = self._statistics.advance(seen[index] for index in sorted(seen, reverse=True))
        return StepGradient(
            loss=sum(losses.values()) / num_labels, by_order=by_order, statistics_by_order=[statistics] * len(by_order)
        )

    def _make_micro_batches(self, number: int) -> list[MicroBatch]:
        config, step = self._config, self._steps[number - 1]
        made = (
            make_micro_batch(step.source, step.plan, index, seq_len=config.seq_len, seed=(config.seed, number))
            for index in range(len(step.plan.micro_batches))
        )
        return [
            replace(part, dropout_seed=draw_dropout_seed(config.seed, number, index)).to(torch.device(config.device))
            for index, part in enumerate(made)
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


def _count_labels(micro_batches: Iterable[MicroBatch]) -> int:
    return max(sum(int((part.labels != IGNORED_LABEL).sum()) for part in micro_batches), 1)


def draw_dropout_seed(seed: int, step: int, index: int) -> int:
    """Return what torch's generator is seeded with before a micro-batch: by the stated rule, whichever rank runs it.

    That is the first word that numpy draws from the run's seed, the step, from 1 over the whole run, and the place of
    the micro-batch in the step, from 0.
    """
    return int(np.random.SeedSequence([seed, step, index]).generate_state(1)[0])


def add_up(parts: Iterable[Part]) -> Part:
    """Return the sum, in the tensors of the first; none is held any longer while the next is made."""
    total: Part | None = None
    for part in parts:
        total = (
            part
            if total is None
            else [a if b is None else b if a is None else a.add_(b) for a, b in zip(total, part, strict=True)]
        )
        del part
    assert total is not None, "at least one"
    return total


@dataclass(frozen=True)
class _Step:
    """One optimizer step of the run."""

    segment: SegmentConfig
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
        source, plan = open_segment(workload, config, segment)
        for number in range(1, plan.num_steps + 1):
            learning_rate = compute_rate_in_segment(config, segment, number, num_steps=plan.num_steps)
            yield _Step(
                segment=segment, source=source, segment_plan=plan, segment_step=number, learning_rate=learning_rate
            )


def make_rank_order(config: TrainingConfig) -> Order:
    """Return the order of the config's ranks: each adds up its share, then the shares are added, in rank order.

    In exact mode there is one sum only. Each micro-batch is in the order exactly once, whatever the plan deals out.
    """
    num_shares = count_shares(config.strategy, config.world_size, config.options)

    def order(step: StepPlan, number: int) -> list[list[int]]:
        if config.exact:
            return order_as_one_rank(step, number)
        left = set(range(len(step.micro_batches)))
        groups: list[list[int]] = []
        for share in range(num_shares):
            groups.append([])
            for index in step.select_for_rank(share, num_shares):
                if index in left:
                    left.remove(index)
                    groups[-1].append(index)
        groups[-1] += sorted(left)
        return [group for group in groups if group]

    return order


def make_other_orders(config: TrainingConfig) -> list[Order]:
    """Return orders that are as right as the ranks'; what they give differs by rounding alone.

    Where gradients are exchanged in 16 bit each rank's are rounded, so that what a rank adds up stays together.
    """
    if config.options.get("gradient_hook", "none") == "none":
        return [order_as_one_rank, shuffle]
    ranks = make_rank_order(config)
    return [
        lambda step, number: [group[::-1] for group in reversed(ranks(step, number))],
        lambda step, number: [
            np.random.default_rng([number, rank]).permutation(group).tolist()
            for rank, group in enumerate(ranks(step, number))
        ],
    ]
