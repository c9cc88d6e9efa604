"""The optimizer's step on this rank's rows as plain tensors, which stand in the same places of vectors as in the whole.

torch's fused kernels know no sharded SGD. And on a CPU they round the last elements of a tensor, those that fill no
vector, otherwise than the rest: of a shard, those would be others than of the whole.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_VECTOR = 16
"""Elements: the most that a CPU takes at once, 64 bytes."""


class Room(NamedTuple):
    """Elements before and after a shard while it is updated."""

    before: int
    after: int


def find_room(start: int, end: int, *, num_elements: int) -> Room:
    """Return what a shard of a tensor from element `start` to `end` lacks to whole vectors of that tensor."""
    return Room(start % _VECTOR, min(-end % _VECTOR, num_elements - end))


class LocalUpdate:
    """Has an optimizer of DTensors update stand-ins in every step, which share their memory or are copied back."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, find_room: Callable[[Tensor], Room]) -> None:
        """`find_room`: how much room a parameter's shard is to have around it; none: it is updated where it is."""
        self._find_room = find_room
        self._real: list[list[nn.Parameter]] = []
        optimizer.register_step_pre_hook(self._replace)
        optimizer.register_step_post_hook(self._restore)

    def _replace(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._real = [group["params"] for group in optimizer.param_groups]
        for group, parts in zip(optimizer.param_groups, self._real, strict=True):
            group["params"] = [self._stand_in(part, optimizer) for part in parts]

    def _stand_in(self, part: nn.Parameter, optimizer: torch.optim.Optimizer) -> nn.Parameter:
        room = self._find_room(part)
        other = nn.Parameter(_give_room(part.data, room))
        if part.grad is not None:
            other.grad = _give_room(part.grad, room)
        if part in optimizer.state:
            optimizer.state[other] = {
                name: _give_room(value, room) if _is_like(value, part) else value
                for name, value in optimizer.state[part].items()
            }
        return other

    def _restore(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, parts in zip(optimizer.param_groups, self._real, strict=True):
            for part, other in zip(parts, group["params"], strict=True):
                self._take_back(part, other, optimizer)
            group["params"] = parts
        self._real = []

    def _take_back(self, part: nn.Parameter, other: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        room = self._find_room(part)
        _copy(other, part.data, room)
        for name, value in optimizer.state.pop(other, {}).items():
            if not _is_like(value, other):
                optimizer.state[part][name] = value
                continue
            if name not in optimizer.state[part]:
                optimizer.state[part][name] = torch.zeros_like(part, memory_format=torch.preserve_format)
            _copy(value, optimizer.state[part][name], room)


def get_local_rows(tensor: Any) -> Tensor:
    """Return this rank's rows of it, in place."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def _give_room(tensor: Tensor, room: Room) -> Tensor:
    mine = get_local_rows(tensor)
    return F.pad(mine.reshape(-1), room) if any(room) else mine


def _copy(updated: Tensor, real: Tensor, room: Room) -> None:
    mine = get_local_rows(real)
    if mine.data_ptr() != updated.data_ptr():
        mine.copy_(updated.detach().reshape(-1)[room.before :][: mine.numel()].view_as(mine))


def _is_like(value: Any, part: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == part.shape and value.ndim > 0
