"""What ranks that share the weights exchange, counted: gathers of weights, reductions of gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from training.step.traffic import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Traffic


class Sent:
    """What this rank put into collectives so far, and whether a gradient that it put in was not finite."""

    def __init__(self) -> None:
        self.counts = {kind: Traffic(0, 0) for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)}
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
