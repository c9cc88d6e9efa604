"""What turns a gradient into an update: AdamW, or SGD with momentum; one kernel for all parameters."""

from collections.abc import Sequence
from typing import Any

import torch

from training.config import TrainingConfig


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
