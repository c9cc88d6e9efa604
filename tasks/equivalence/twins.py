"""How far right trainings part: the first steps of the baseline, trained a few times with its sums in other orders.

What adding numbers up in another order changes is in the last digit; training itself makes more of it, from step to
step, in some trainings a thousand times within two. So one process (reference/update.py) trains as the baseline does,
then in the order of every other cell's ranks, then in random orders, each time from the base model on. In random orders
every element is also rounded as coarsely as the certificate lets pass: what makes a training jump are rare events, such
as an activation on the other side of 0, which else would happen in one right training and not in another.
The losses are the envelope in which the gate "Loss curves coincide" allows the cells to part.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tasks.equivalence.differences import FP32_EPS, MARGIN
from tasks.records.twins import Twin, Twins
from tasks.strategies import count_shares, get_exchange_dtype
from training.config import TrainingConfig

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from tasks.equivalence.reference.update import Order

_log = logging.getLogger(__name__)

_FEWEST_RUNS, _MOST_RUNS = 3, 5
"""Trainings of the same steps: three make three pairs, five make ten."""
_MOST_CELLS = 3
"""In whose orders one is trained."""
_FEWEST_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One way to add up."""

    name: str
    config: TrainingConfig
    order: "Order"
    seed: int | None = None
    """Of the coarse rounding; None: gradients are as they are."""


def train_twins(
    baseline: TrainingConfig,
    others: Mapping[str, TrainingConfig],
    *,
    max_seconds: float,
    on_step: Callable[[], None] = lambda: None,
) -> Twins:
    """Return the losses of a few trainings of the baseline's first steps, which differ in the order of sums alone.

    `others`: what the ranks of the other cells are told. The first training stops when its share of the seconds is
    spent, though not before a few steps; the others make as many.
    """
    started = time.perf_counter()
    runs = _list_runs(baseline, others)
    first = _train(runs[0], on_step, seconds=max_seconds / _FEWEST_RUNS)
    twins, num_steps = [Twin(order=runs[0].name, losses=first)], len(first)
    for run in runs[1:]:
        mean_seconds = (time.perf_counter() - started) / len(twins)
        if len(twins) >= _FEWEST_RUNS and time.perf_counter() - started + mean_seconds > max_seconds:
            break
        twins.append(Twin(order=run.name, losses=_train(run, on_step, num_steps=num_steps)))
    _log.info("%d trainings of the same %d steps, to see how far right ones part", len(twins), num_steps)
    return Twins(twins=twins, seconds=time.perf_counter() - started)


def _list_runs(baseline: TrainingConfig, others: Mapping[str, TrainingConfig]) -> list[_Run]:
    from tasks.equivalence.orders import make_rank_order
    from tasks.equivalence.reference.update import shuffle_with_seed

    runs = [_Run(name=f"as {baseline.cell} adds", config=baseline, order=make_rank_order(baseline))]
    seen = {_make_order_key(baseline)}
    for cell, told in sorted(others.items(), key=lambda item: -item[1].world_size)[:_MOST_CELLS]:
        if _make_order_key(told) not in seen:
            seen.add(_make_order_key(told))
            config = dataclasses.replace(
                baseline, strategy=told.strategy, world_size=told.world_size, options=told.options
            )
            runs.append(_Run(name=f"as {cell} adds", config=config, order=make_rank_order(config)))
    num_random = _MOST_RUNS - len(runs)
    return runs + [
        _Run(name=f"at random, {seed}", config=baseline, order=partial(shuffle_with_seed, seed), seed=seed)
        for seed in range(1, num_random + 1)
    ]


def _make_order_key(config: TrainingConfig) -> str:
    """Return what the order and the rounding of sums depend on."""
    shares = count_shares(config.strategy, config.world_size, config.options)
    return json.dumps([shares, get_exchange_dtype(config.strategy, config.options)])


def _round_coarsely(gradient: Mapping[str, "Tensor"], *, seed: int) -> dict[str, "Tensor"]:
    """Return the gradient, each element off by up to as many roundings of fp32 as the certificate lets pass."""
    import torch

    def add_noise(part: "Tensor") -> "Tensor":
        draw = torch.Generator(part.device).manual_seed(seed)
        noise = torch.rand(part.shape, generator=draw, device=part.device)
        return part * (1 + (2 * noise - 1) * MARGIN * FP32_EPS)

    return {name: add_noise(part) for name, part in gradient.items()}


def _train(
    run: _Run, on_step: Callable[[], None], *, seconds: float = float("inf"), num_steps: int | None = None
) -> list[float]:
    """Return the loss of each step until the seconds are spent or so many are made."""
    from tasks.equivalence.reference.update import OneProcess

    process, losses = OneProcess(run.config), list[float]()
    deadline = time.perf_counter() + seconds
    for number in range(1, (num_steps or process.num_steps) + 1):
        if time.perf_counter() > deadline and number > _FEWEST_STEPS:
            break
        found = process.gradient(number, run.order)
        (gradient,) = found.by_order
        process.apply(
            gradient if run.seed is None else _round_coarsely(gradient, seed=run.seed * 1_000_003 + number), number
        )
        losses.append(found.loss)
        on_step()
    return losses
