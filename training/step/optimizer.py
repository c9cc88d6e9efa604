"""What turns a gradient into an update: clipping, then AdamW, or SGD with momentum; one kernel for all parameters."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.config import TrainingConfig

_CLIPPING_EPSILON = 1e-6
"""Beside the norm that a gradient is divided by, as torch's own clipping has it."""


def group_parameters(
    parameters: Sequence[nn.Parameter], config: TrainingConfig
) -> list[tuple[float, list[nn.Parameter]]]:
    """Return (weight decay, parameters) of every group: as usual for transformers, biases and norms are not decayed."""
    groups = [
        (config.weight_decay, [part for part in parameters if part.ndim >= 2]),
        (0.0, [part for part in parameters if part.ndim < 2]),
    ]
    return [(weight_decay, group) for weight_decay, group in groups if group]


def build_optimizer(groups: Sequence[dict[str, Any]], config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the config's optimizer for groups of parameters, each with its own `weight_decay`."""
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=(config.adam_beta1, config.adam_beta2), fused=True)
    optimizer = torch.optim.SGD(groups, momentum=config.momentum, fused=True)
    # By itself torch allocates the momentum in the first step and leaves it to the kernel to fill it, which does not if
    # that step's gradient is not finite: what happened to be in memory would be the momentum of the second step. From
    # zeros the first step is the same.
    for group in optimizer.param_groups if config.momentum else []:
        for part in group["params"]:
            optimizer.state[part]["momentum_buffer"] = torch.zeros_like(part, memory_format=torch.preserve_format)
    return optimizer


def list_moments(config: TrainingConfig) -> tuple[str, ...]:
    """Return what the optimizer keeps of every parameter, each as large as the parameter."""
    if config.optimizer == "adamw":
        return ("exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if config.momentum else ()


def get_local_rows(tensor: Any) -> Tensor:
    """Return this rank's rows of a tensor, in place: all of them, but of a DTensor."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def clip_part(mine: Sequence[Tensor], squares: Tensor, *, most: float) -> Tensor:
    """Scale this rank's part of the gradient so that the whole has no larger norm than `most`; return what it had.

    `squares`, () float64: the sum of the squares of the whole.
    """
    norm = squares.sqrt().float()
    torch._foreach_mul_(list(mine), torch.clamp(most / (norm + _CLIPPING_EPSILON), max=1.0))
    return norm
