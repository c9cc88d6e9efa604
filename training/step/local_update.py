"""The optimizer's step on this rank's rows as plain tensors and, in exact mode, of lengths that no kernel treats apart.

torch's fused kernels know no sharded SGD. And on a CPU they round the last elements of a tensor, those that fill no
vector, otherwise than the rest: which ones these are depends on the number of ranks.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_VECTOR = 16
"""Elements: the largest that a CPU takes at once, 64 bytes."""


class LocalUpdate:
    """Has an optimizer update stand-ins in every step, which share their memory with what they stand for or are copied
    back."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, pads: bool) -> None:
        """`pads`: whether tensors that fill no whole number of vectors are filled up while they are updated."""
        self._pads = pads
        self._real: list[list[nn.Parameter]] = []
        optimizer.register_step_pre_hook(self._replace)
        optimizer.register_step_post_hook(self._restore)

    def _replace(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._real = [group["params"] for group in optimizer.param_groups]
        for group, parts in zip(optimizer.param_groups, self._real, strict=True):
            group["params"] = [self._stand_in(part, optimizer) for part in parts]

    def _stand_in(self, part: nn.Parameter, optimizer: torch.optim.Optimizer) -> nn.Parameter:
        if part.grad is None or not (_is_sharded(part) or self._needs_room(part)):
            return part
        other = nn.Parameter(self._make_plain(part.data))
        other.grad = self._make_plain(part.grad)
        if part in optimizer.state:
            kept = optimizer.state[part]
            optimizer.state[other] = {
                name: self._make_plain(value) if _is_like(value, part) else value for name, value in kept.items()
            }
        return other

    def _needs_room(self, tensor: Tensor) -> bool:
        return self._pads and get_local_rows(tensor).numel() % _VECTOR != 0

    def _make_plain(self, tensor: Tensor) -> Tensor:
        mine = get_local_rows(tensor)
        if not self._needs_room(tensor):
            return mine
        return F.pad(mine.reshape(-1), (0, -mine.numel() % _VECTOR))

    def _restore(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, parts in zip(optimizer.param_groups, self._real, strict=True):
            for part, other in zip(parts, group["params"], strict=True):
                if part is not other:
                    self._take_back(part, other, optimizer)
            group["params"] = parts
        self._real = []

    def _take_back(self, part: nn.Parameter, other: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        self._copy(other, part.data)
        for name, value in optimizer.state.pop(other, {}).items():
            if not isinstance(value, Tensor) or value.shape != other.shape:
                optimizer.state[part][name] = value
                continue
            if name not in optimizer.state[part]:
                optimizer.state[part][name] = torch.zeros_like(part, memory_format=torch.preserve_format)
            self._copy(value, optimizer.state[part][name])

    def _copy(self, updated: Tensor, real: Tensor) -> None:
        mine = get_local_rows(real)
        if mine.data_ptr() != updated.data_ptr():
            mine.copy_(updated.detach().reshape(-1)[: mine.numel()].view_as(mine))


def get_local_rows(tensor: Any) -> Tensor:
    """Return this rank's rows of it, in place."""
    local: Tensor = tensor.to_local() if _is_sharded(tensor) else tensor
    return local.detach()


def _is_sharded(tensor: Any) -> bool:
    # A DTensor, without importing them where there are none.
    return hasattr(tensor, "to_local")


def _is_like(value: Any, part: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == part.shape and value.ndim > 0
