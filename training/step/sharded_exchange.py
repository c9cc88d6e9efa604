"""What ranks that share the weights exchange, counted: gathers of weights, reductions of gradients in two orders."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from training.step.local_update import get_local_rows
from training.step.shards import Shards
from training.step.traffic import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Traffic


class Sent:
    """What this rank put into collectives so far, and whether a gradient that it put in was not finite."""

    def __init__(self) -> None:
        self.counts = {kind: Traffic(0, 0) for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL)}
        self.is_watched = False
        self.is_finite = True

    def count(self, kind: str, tensor: Tensor) -> None:
        """Note one more."""
        number, num_bytes = self.counts[kind]
        self.counts[kind] = Traffic(number + 1, num_bytes + tensor.nbytes)

    def count_all_reduce(self, tensor: Tensor) -> None:
        """Note one more that torch made by itself."""
        self.count(ALL_REDUCE, tensor)

    def watch(self, gradient: Tensor) -> None:
        """Look at what this rank gives to a reduction, if that is asked for."""
        if self.is_watched:
            self.is_finite = self.is_finite and bool(gradient.isfinite().all())

    def since(self, before: Mapping[str, Traffic]) -> dict[str, Traffic]:
        """Return what came after `before`, of the kinds that there were."""
        found = {
            kind: Traffic(now.number - before[kind].number, now.num_bytes - before[kind].num_bytes)
            for kind, now in self.counts.items()
        }
        return {kind: one for kind, one in found.items() if one.number}


class _Allocating:
    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(_Allocating):
    """All-gather as torch does it."""

    def __init__(self, sent: Sent) -> None:
        self._sent = sent

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        self._sent.count(ALL_GATHER, input_tensor)
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class Scatter(_Allocating):
    """Reduce-scatter as torch does it; what goes in is this rank's own gradient."""

    def __init__(self, sent: Sent) -> None:
        self._sent = sent

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        self._sent.count(REDUCE_SCATTER, input_tensor)
        self._sent.watch(input_tensor)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, group=group, op=op, async_op=async_op)


class Turn:
    """One micro-batch of every rank, in exact mode."""

    ranks_in_order: Sequence[int] = ()
    """Whose gradients count, in the order in which they are added."""
    is_last = False
    """Whether it is the step's last."""


class ScatterInOrder(_Allocating):
    """Every rank's rows go to their owner, who adds them to the sum so far in the order of one rank alone.

    So it gives the sum over all turns of the step until now. One for each unit.
    """

    def __init__(self, sent: Sent, turn: Turn) -> None:
        self._sent = sent
        self._turn = turn
        self._total: Tensor | None = None

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        self._sent.count(ALL_TO_ALL, input_tensor)
        self._sent.watch(input_tensor)
        everyones = torch.empty_like(input_tensor)
        dist.all_to_all_single(everyones, input_tensor, group=group)
        theirs = everyones.view(-1, output_tensor.numel())
        total = self._total
        for rank in self._turn.ranks_in_order:
            total = theirs[rank].clone() if total is None else total.add_(theirs[rank])
        assert total is not None, "a turn in which no gradient counts"
        output_tensor.copy_(total)
        self._total = None if self._turn.is_last else total


def compute_norm_as_one(
    gradient: Sequence[DTensor], shards: Shards, *, group: Any, device: torch.device, sent: Sent
) -> Tensor:
    """Return the norm as one rank computes it, of whole tensors, each of which is there for as long as it takes."""
    norms: list[Tensor] = []
    for part in gradient:
        mine = get_local_rows(part).to(device)
        num_rows = shards.count_rows(part)
        whole = mine.new_zeros(num_rows * shards.number, *part.shape[1:])
        padded = mine.new_zeros(num_rows, *part.shape[1:])
        padded[: len(mine)] = mine
        if shards.number > 1:
            sent.count(ALL_GATHER, padded)
            dist.all_gather_into_tensor(whole, padded, group=group)
        else:
            whole = padded
        norms += torch._foreach_norm([whole[: len(part)].clone()])
    return torch.linalg.vector_norm(torch.stack(norms))
