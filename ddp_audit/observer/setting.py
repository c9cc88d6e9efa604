"""What torch computes with, where a script may say so for some cells alone."""

from typing import Any

import torch
from torch import nn

from ddp_audit.observer.torch_private import is_compiler_used

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def find_precision(learner: Any, found: list[tuple[str, torch.Tensor]]) -> str:
    """Return what a model computes in: by autocast on the device of its inputs, else the type of a parameter."""
    device = found[0][1].device.type if found else "cpu"
    if torch.is_autocast_enabled(device):
        return f"autocast {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
    return "" if learner is None else str(learner.dtype).removeprefix("torch.")


def draws_at_random(module: torch.nn.Module) -> bool:
    """Return whether a module computes something else of a row every time, or with other rows beside it."""
    if not module.training:
        return False
    if isinstance(module, _BATCH_NORMS):
        return True
    found = [getattr(module, name, 0) for name in ("p", "dropout", "drop_prob", "attention_dropout")]
    return any(isinstance(one, float) and one > 0 for one in found)


def read_options(optimizer: Any) -> dict[str, list[Any]]:
    """Return option -> its values, of the groups of parameters in their order, each once."""
    found = {}
    for name in optimizer.defaults:
        values = [group.get(name) for group in optimizer.param_groups]
        plain = [
            one
            for one in values
            if all(
                each is None or isinstance(each, int | float) for each in (one if isinstance(one, tuple) else (one,))
            )
        ]
        if len(plain) == len(values):
            found[name] = list(dict.fromkeys(plain))
    return found


def read_torch_settings() -> dict[str, bool | str]:
    """Return those that change how long a step takes, or what it computes."""
    return {
        "compiler in use": is_compiler_used(),
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "detect_anomaly": torch.is_anomaly_enabled(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
    }
