"""Gradients and tensors of which every rank has a part: the whole of one, and a rank's part of a whole."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from training.process.distributed import Ranks

_EPSILON = 1e-6
"""Beside the norm that a gradient is divided by, as torch's own clipping has it."""


def clip_part(mine: Sequence[Tensor], squares: Tensor, *, most: float) -> Tensor:
    """Scale this rank's part of the gradient so that the whole has no larger norm than `most`; return what it had.

    `squares`, () float64: the sum of the squares of the whole.
    """
    norm = squares.sqrt().float()
    torch._foreach_mul_(list(mine), torch.clamp(most / (norm + _EPSILON), max=1.0))
    return norm


def gather_whole(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Return all ranks' rows as one tensor, on the CPU of every rank; one that is no shard as it is.

    To be called by all ranks. It goes over the ranks' own group, beside that of the gradients, whose exchanges are
    counted; the rows are dealt as torch.chunk does.
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach().cpu()
    mine = tensor.to_local().detach().cpu()
    num_rows = _count_rows_per_rank(tensor, ranks)
    padded = torch.zeros((num_rows, *tensor.shape[1:]), dtype=mine.dtype)
    padded[: len(mine)] = mine
    if ranks.world_size == 1:
        return padded[: tensor.shape[0]]
    parts = [torch.empty_like(padded) for _ in range(ranks.world_size)]
    dist.all_gather(parts, padded)
    return torch.cat(parts)[: tensor.shape[0]]


def select_own_rows(whole: Tensor, like: DTensor, ranks: Ranks) -> Tensor:
    """Return this rank's rows of a whole tensor: those that it has of `like`."""
    num_rows = _count_rows_per_rank(like, ranks)
    return whole[ranks.rank * num_rows : (ranks.rank + 1) * num_rows]


def _count_rows_per_rank(tensor: DTensor, ranks: Ranks) -> int:
    return -(-tensor.shape[0] // ranks.world_size)
