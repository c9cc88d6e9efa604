"""The gradient noise scale in mid-training, as the product takes it and in the optimizer's own coordinates.

An update w - r g / s, s the root of AdamW's second moments, is one of plain gradients for coordinates that are
stretched by the root of s. There the gradient is g / sqrt(s), and what decides how large a batch still teaches in full
is the noise scale of that.
"""

import math

import numpy as np
import torch
from torch import Tensor

from benchmarks.efficiency.trainee import Trainee
from tasks.equivalence.reference.update import BatchSquares
from tasks.measuring.noise_scale import estimate_moments, estimate_noise_ratio, split_for_noise
from tasks.records.noise_scale import NoiseScale
from training.data.batches import IGNORED_LABEL
from training.data.plan import make_micro_batch

_FIRST_PASS = 1_001
"""The passes from which the rows come: none that is trained on."""


def measure_noise(trainee: Trainee, *, num_batches: int) -> tuple[NoiseScale, NoiseScale | None]:
    """Return the noise scale of a batch of the workload's own, of the gradient and of the optimizer's coordinates.

    The latter is None without second moments. Nothing that is trained changes.
    """
    stretches: list[list[Tensor] | None] = [None]
    if (found := _list_stretches(trainee)) is not None:
        stretches.append(found)
    squares = _collect_squares(trainee, stretches, num_batches=num_batches)
    plain, *others = (_estimate(trainee, some) for some in squares)
    return plain, others[0] if others else None


def _list_stretches(trainee: Trainee) -> list[Tensor] | None:
    """Return by how much each parameter's gradient is stretched; None before the first step and without AdamW."""
    found = []
    for part in trainee.parameters:
        state = trainee.optimizer.state.get(part, {})
        if "exp_avg_sq" not in state:
            return None
        beta = trainee.config.adam_beta2
        second = state["exp_avg_sq"] / (1 - beta ** float(state["step"]))
        found.append((second.sqrt() + 1e-8).rsqrt())
    return found


def _collect_squares(
    trainee: Trainee, stretches: list[list[Tensor] | None], *, num_batches: int
) -> list[list[BatchSquares]]:
    """Return, for each stretch, the squares of so many batches."""
    told, num_parts = split_for_noise(trainee.own)
    trainee.model.train()
    found: list[list[BatchSquares]] = [[] for _ in stretches]
    for turn in range(num_batches):
        labels, by_part, totals, num_samples = [], [[] for _ in stretches], None, 0
        plan, source = trainee.plan_pass(_FIRST_PASS + trainee.num_samples, told)
        for place in range(num_parts):
            step = plan.step(1 + (turn * num_parts + place) % (plan.num_steps - 1))
            num_samples += sum(len(rows) for rows in step.micro_batches)
            gradient, own = None, 0
            for index in range(len(step.micro_batches)):
                part = make_micro_batch(
                    source, step, index, seq_len=told.seq_len, seed=(told.seed, _FIRST_PASS + turn * num_parts + place)
                )
                own += int((part.labels != IGNORED_LABEL).sum())
                one = torch.autograd.grad(trainee.compute_loss(part), trainee.parameters)
                gradient = one if gradient is None else [a + b for a, b in zip(gradient, one, strict=True)]
            assert gradient is not None
            if not own:
                continue
            labels.append(own)
            totals = list(gradient) if totals is None else [a + b for a, b in zip(totals, gradient, strict=True)]
            for some, stretch in zip(by_part, stretches, strict=True):
                some.append(_square(gradient, stretch) / own**2)
        for some, parts, stretch in zip(found, by_part, stretches, strict=True):
            assert totals is not None
            some.append(BatchSquares(num_samples, labels, parts, _square(totals, stretch) / sum(labels) ** 2))
    return found


def _square(gradient: "list[Tensor] | tuple[Tensor, ...]", stretch: list[Tensor] | None) -> float:
    if stretch is not None:
        gradient = [part * by for part, by in zip(gradient, stretch, strict=True)]
    return math.fsum(float(torch.linalg.vector_norm(part)) ** 2 for part in gradient)


def _estimate(trainee: Trainee, squares: list[BatchSquares]) -> NoiseScale:
    moments = [estimate_moments(one) for one in squares]
    ratio, means = estimate_noise_ratio(moments), np.mean(moments, axis=0).tolist()
    return NoiseScale(
        range=trainee.own.segments[0].range, epoch=0, value=ratio.value, low=ratio.low, high=ratio.high,
        squared_norm=means[0], trace=means[1], num_batches=len(squares), batch_size=squares[0].num_samples,
        num_parts=len(squares[0].num_labels),
    )  # fmt: skip
