"""The noise scale in mid-training: of the gradient itself, and in AdamW's coordinates, as the product has it."""

import numpy as np
import torch
from torch import Tensor

from benchmarks.efficiency.trainee import Trainee
from tasks.equivalence.reference.batch_squares import BatchSquares, Part, SecondMoments, add_squares, square
from tasks.measuring.noise_scale import FILLING, estimate_moments, estimate_noise_ratio, is_known, split_for_noise
from tasks.records.noise_scale import NoiseScale
from training.data.batches import IGNORED_LABEL
from training.data.plan import make_micro_batch

_FIRST_PASS = 1_001
"""The passes from which the rows come: none that is trained on."""


def measure_noise(trainee: Trainee, *, num_batches: int) -> tuple[NoiseScale, NoiseScale | None]:
    """Return the noise scale of a batch of the workload's own, of the gradient and in AdamW's coordinates.

    The latter is None without second moments, and of as many batches as the product takes. Nothing that is trained
    changes.
    """
    moments, num_filling = _copy_moments(trainee)
    trainee.model.train()
    plain, scaled = list[BatchSquares](), list[BatchSquares]()
    for turn in range(-num_filling, num_batches):
        own, other = _square_batch(trainee, turn if turn >= 0 else num_batches - 1 - turn, moments)
        if turn >= 0:
            plain.append(own)
            if other is not None and not is_known(scaled, trainee.own.global_batch_size):
                scaled.append(other)
    source = None if not scaled else "batches" if num_filling else "training"
    return _estimate(trainee, plain, None), _estimate(trainee, scaled, source) if scaled else None


def _copy_moments(trainee: Trainee) -> tuple[SecondMoments | None, int]:
    """Return AdamW's second moments, and from how many batches they are to be filled before the first step."""
    config = trainee.config
    if config.optimizer != "adamw":
        return None, 0
    found = SecondMoments(beta2=config.adam_beta2, max_norm=config.max_grad_norm)
    if not trainee.num_steps:
        return found, FILLING
    states = [trainee.optimizer.state[part] for part in trainee.parameters]
    found.squares = [state["exp_avg_sq"].clone() for state in states]
    found.steps = [float(state["step"]) for state in states]
    return found, 0


def _square_batch(
    trainee: Trainee, turn: int, moments: SecondMoments | None
) -> tuple[BatchSquares, BatchSquares | None]:
    """Return the squares of a batch's gradients, of themselves and in AdamW's coordinates."""
    told, num_parts = split_for_noise(trainee.own)
    plan, source = trainee.plan_pass(_FIRST_PASS + trainee.num_samples, told)
    labels, num_samples, of_parts, by_number, total = list[int](), 0, 0.0, None, None
    for place in range(num_parts):
        step = plan.step(1 + (turn * num_parts + place) % (plan.num_steps - 1))
        num_samples += sum(len(rows) for rows in step.micro_batches)
        gradient, own = None, 0
        for index in range(len(step.micro_batches)):
            part = make_micro_batch(
                source, step, index, seq_len=told.seq_len, seed=(told.seed, _FIRST_PASS + turn * num_parts + place)
            )
            own += int((part.labels != IGNORED_LABEL).sum())
            gradient = _add(gradient, torch.autograd.grad(trainee.compute_loss(part), trainee.parameters))
        assert gradient is not None
        if not own:
            continue
        labels.append(own)
        of_parts += square([*gradient]) / own
        total = _add(total, gradient)
        by_number = add_squares(by_number, [*gradient], own)
    assert total is not None
    assert by_number is not None
    num_labels = sum(labels)
    mean: Part = [one / num_labels for one in total]
    plain = BatchSquares(num_samples, labels, of_parts / num_labels, square(mean))
    if moments is None:
        return plain, None
    of_all, of_squares = moments.weigh(mean, by_number)
    return plain, BatchSquares(num_samples, labels, of_squares / num_labels, of_all)


def _add(left: list[Tensor] | None, right: "list[Tensor] | tuple[Tensor, ...]") -> list[Tensor]:
    return list(right) if left is None else [a + b for a, b in zip(left, right, strict=True)]


def _estimate(trainee: Trainee, squares: list[BatchSquares], second_moments: str | None) -> NoiseScale:
    moments = [estimate_moments(one) for one in squares]
    ratio, means = estimate_noise_ratio(moments), np.mean(moments, axis=0).tolist()
    return NoiseScale.model_validate(
        {
            "range": trainee.own.segments[0].range, "epoch": 0, "value": ratio.value, "low": ratio.low,
            "high": ratio.high, "squared_norm": means[0], "trace": means[1], "num_batches": len(squares),
            "batch_size": squares[0].num_samples, "num_parts": len(squares[0].num_labels),
            "second_moments": second_moments,
        }
    )  # fmt: skip
