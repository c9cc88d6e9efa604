"""What every rank has of its own, such as what it has not sent yet: gathered for a checkpoint."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from training.process.distributed import Ranks


def gather_own(mine: dict[str, Any], ranks: Ranks) -> list[Any]:
    """Return what every rank has, alike but for the numbers, by rank, on rank 0; the others give theirs. Collective."""
    if not ranks.is_first:
        _map_tensors(mine, lambda part: dist.send(part.detach().cpu().contiguous(), dst=0))
        return []
    return [mine, *(_map_tensors(mine, partial(_receive_like, rank)) for rank in range(1, ranks.world_size))]


def _receive_like(rank: int, part: Tensor) -> Tensor:
    found = torch.empty(part.shape, dtype=part.dtype)
    dist.recv(found, src=rank)
    return found


def _map_tensors(value: Any, do: Callable[[Tensor], Any]) -> Any:
    """Return dicts with what is done to each tensor in its place, in an order that is the same on all ranks."""
    if isinstance(value, dict):
        return {key: _map_tensors(value[key], do) for key in sorted(value)}
    return do(value) if isinstance(value, Tensor) else value
