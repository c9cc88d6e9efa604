"""Tensors of which every rank has some rows: the whole of one, a rank's rows of a whole, their exchange and update."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from training.process.distributed import Ranks
from training.step.optimizer import get_local_rows
from training.step.traffic import ALL_GATHER, REDUCE_SCATTER, Sent

Key = TypeVar("Key")
_TOGETHER_BYTES = 1 << 25
"""Of a rank's rows that go in one exchange, unless one tensor alone has more."""


class Shards:
    """The ranks that hold one copy between them, neighbours, among those that hold others; rows go as torch.chunk does.

    What is gathered here goes over the ranks' own group, beside those of the gradients, whose exchanges are counted.
    """

    def __init__(self, ranks: Ranks, *, copies: int = 1) -> None:
        self._ranks = ranks
        self.number = ranks.world_size // copies
        """Ranks that hold one copy."""
        self.copy, self.place = divmod(ranks.rank, self.number)

    def generate_whole(self, tensors: Iterable[tuple[Key, Tensor]]) -> Iterator[tuple[Key, Tensor]]:
        """Yield all rows of this rank's copy of each, on the CPU; what is no shard as it is. To be called by all ranks.

        Small ones go together, since every exchange has a price of its own, however little it carries.
        """
        waiting, num_bytes = list[tuple[Key, Tensor]](), 0
        for key, tensor in tensors:
            # As many on every rank, whatever rows it has, so that all exchange the same ones together.
            size = self.count_bytes(tensor) if isinstance(tensor, DTensor) else 0
            if waiting and num_bytes + size > _TOGETHER_BYTES:
                yield from self._gather(waiting)
                waiting, num_bytes = [], 0
            waiting.append((key, tensor))
            num_bytes += size
        yield from self._gather(waiting)

    def _gather(self, tensors: Sequence[tuple[Key, Tensor]]) -> Iterator[tuple[Key, Tensor]]:
        mine = []
        for _, tensor in tensors:
            if isinstance(tensor, DTensor):
                # As many rows as every rank has.
                own = get_local_rows(tensor).cpu()
                padded = torch.zeros((self.count_rows(tensor), *tensor.shape[1:]), dtype=own.dtype)
                padded[: len(own)] = own
                mine.append(padded.view(torch.uint8).flatten())
        parts = [mine[0] if len(mine) == 1 else torch.cat(mine)] if mine else []
        if mine and self._ranks.world_size > 1:
            every = [torch.empty_like(parts[0]) for _ in range(self._ranks.world_size)]
            dist.all_gather(every, parts[0])
            parts = every[self.copy * self.number : (self.copy + 1) * self.number]
        start = 0
        for key, tensor in tensors:
            if not isinstance(tensor, DTensor):
                yield key, tensor.detach().cpu()
                continue
            end = start + self.count_bytes(tensor)
            # Apart from what else was exchanged with it, also where one rank has all.
            whole = torch.cat([part[start:end] for part in parts]).view(tensor.dtype)
            yield key, whole.view(-1, *tensor.shape[1:])[: tensor.shape[0]]
            start = end

    def count_bytes(self, tensor: Tensor) -> int:
        """Return the bytes of a rank's rows of it, padded so that every rank has as many."""
        return self.count_rows(tensor) * math.prod(tensor.shape[1:]) * tensor.element_size()

    def select_own_rows(self, whole: Tensor, like: DTensor) -> Tensor:
        """Return this rank's rows of a whole tensor: those that it has of `like`."""
        num_rows = self.count_rows(like)
        return whole[self.place * num_rows : (self.place + 1) * num_rows]

    def count_rows(self, tensor: Tensor) -> int:
        """Return how many rows of it a rank has, the last ones of which may be none."""
        return -(-tensor.shape[0] // self.number)


class Reduced(Sent):
    """What this rank put into collectives so far, and whether a gradient that it put in was not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.is_watched = False
        self.is_finite = True

    def watch(self, gradient: Tensor) -> None:
        """Look at what this rank gives to a reduction, if that is asked for."""
        if self.is_watched:
            self.is_finite = self.is_finite and bool(gradient.isfinite().all())


class Gather:
    """All-gather as torch does it."""

    def __init__(self, sent: Reduced) -> None:
        self._sent = sent

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        self._sent.count(ALL_GATHER, input_tensor)
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class Scatter(Gather):
    """Reduce-scatter as torch does it; what goes in is this rank's own gradient."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:  # type: ignore[override]
        self._sent.count(REDUCE_SCATTER, input_tensor)
        self._sent.watch(input_tensor)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, group=group, op=op, async_op=async_op)


def update_local_rows(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer of DTensors update this rank's rows as plain tensors.

    torch's fused kernels know no sharded SGD. In every step stand-ins that share their memory take the parameters'
    places.
    """
    real: list[list[nn.Parameter]] = []

    def replace(*_: Any) -> None:
        for group in optimizer.param_groups:
            real.append(group["params"])
            group["params"] = [_stand_in(part, optimizer) for part in group["params"]]

    def restore(*_: Any) -> None:
        for group, parts in zip(optimizer.param_groups, real, strict=True):
            for part, other in zip(parts, group["params"], strict=True):
                for name, value in optimizer.state.pop(other, {}).items():
                    if not _is_like(value, other):
                        optimizer.state[part][name] = value
                    elif name not in optimizer.state[part]:
                        # Made in this step, the first.
                        optimizer.state[part][name] = torch.zeros_like(part, memory_format=torch.preserve_format)
                        get_local_rows(optimizer.state[part][name]).copy_(value.detach())
            group["params"] = parts
        real.clear()

    optimizer.register_step_pre_hook(replace)
    optimizer.register_step_post_hook(restore)


def _stand_in(part: nn.Parameter, optimizer: torch.optim.Optimizer) -> nn.Parameter:
    other = nn.Parameter(get_local_rows(part.data))
    if part.grad is not None:
        other.grad = get_local_rows(part.grad)
    if part in optimizer.state:
        optimizer.state[other] = {
            name: get_local_rows(value) if _is_like(value, part) else value
            for name, value in optimizer.state[part].items()
        }
    return other


def _is_like(value: Any, part: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == part.shape and value.ndim > 0


def describe_units(units: Sequence[nn.Module], shards: Shards, *, is_mixed: bool) -> dict[str, Any]:
    """Return the bytes of each unit, the root's first, as its weights lie on all ranks of a copy and are gathered.

    A unit's parameters are those that are in no unit within it.
    """
    own = [_list_own(unit, units) for unit in units]
    casts = [False] + [is_mixed] * (len(own) - 1)
    return {
        "unit_bytes": [sum(shards.number * shards.count_bytes(part) for part in parts) for parts in own],
        "gathered_bytes": [
            sum(shards.number * shards.count_bytes(part) // (2 if is_cast and part.ndim > 1 else 1) for part in parts)
            for parts, is_cast in zip(own, casts, strict=True)
        ],
        "num_parameters": sum(map(len, own)),
    }


def _list_own(unit: nn.Module, units: Sequence[nn.Module]) -> list[nn.Parameter]:
    inner = [other for other in unit.modules() if other is not unit and other in units]
    not_its_own = {id(part) for other in inner for part in other.parameters()}
    return [part for part in unit.parameters() if id(part) not in not_its_own]
