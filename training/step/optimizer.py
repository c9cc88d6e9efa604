"""What turns a gradient into an update: AdamW, or SGD with momentum; one kernel for all parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.config import TrainingConfig
from training.model.weights import list_differences


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


def list_state_differences(
    state: Mapping[str, Any], groups: Sequence[Sequence[tuple[str, Tensor]]], moments: Sequence[str]
) -> list[str]:
    """Return in what a saved state of the optimizer does not fit these groups of named parameters, one line each.

    torch looks at little. Raises KeyError, TypeError or AttributeError for what is no such state at all.
    """
    saved = state["optimizer"]
    sizes, wanted_sizes = [len(group["params"]) for group in saved["param_groups"]], list(map(len, groups))
    if sizes != wanted_sizes:
        return [f"the optimizer's groups have {sizes} parameters, the model's {wanted_sizes}"]
    wanted, got = {}, {}
    for index, (name, part) in enumerate(named for group in groups for named in group):
        for moment in moments:
            if name not in state["without_moments"]:
                wanted[f"{moment} of {name}"] = part
            if moment in saved["state"].get(index, {}):
                got[f"{moment} of {name}"] = saved["state"][index][moment]
    return list_differences(got, wanted)
