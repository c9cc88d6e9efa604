"""Gradients that travel compressed, with error feedback: what a step does not send is added to the next gradient.

The error of each rank is what it had to send less what was taken for it (Karimireddy et al. 2019, Error Feedback Fixes
SignSGD and other Gradient Compression Schemes). So nothing is lost: what was applied in all steps, and the mean of what
the ranks have left over, are the sum of all gradients.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from training.process.distributed import Ranks
from training.step.ordered_sum import split_into_parcels, split_like
from training.step.traffic import ALL_GATHER, ALL_REDUCE, Traffic

Gradient = Mapping[str, Tensor]
"""Name of a parameter -> its gradient."""

BLOCK = 256
"""Numbers that share a scale."""
_LEVELS = 127
"""Of either sign, in 8 bits."""


class Compressor(Protocol):
    """Averages gradients over the ranks; parameters are told by their names."""

    parcels: list[list[str]]
    """What is exchanged at once, of all parameters."""
    errors: dict[str, Tensor]
    """What this rank has left over, of those that are compressed."""
    factors: dict[str, Tensor]
    """What the next step begins with beside that, the same on all ranks."""

    def average(self, gradient: Gradient) -> tuple[Gradient, dict[str, Traffic]]:
        """Return what stands for the mean over the ranks, on all the same, and what was exchanged for it. Collective.

        Where a number is not finite on any rank, so is one of the result, and what is left over is of no use.
        """
        ...


class LowRank:
    """PowerSGD (Vogels et al. 2019, algorithm 1): of a matrix two thin factors travel, found by one power iteration.

    It begins with the factor of the step before (warm start). Vectors are sent whole, and matrices that would not
    become smaller. Matrices of one shape are computed together.
    """

    def __init__(self, named: Mapping[str, Tensor], ranks: Ranks, *, rank: int, seed: int) -> None:
        self._ranks = ranks
        self._group: Any = ranks.gradient_group
        self.parcels = [list(named)]
        self._alike: dict[tuple[int, int], list[str]] = {}
        for name, part in named.items():
            rows, columns = shape_as_matrix(part)
            if (rows + columns) * rank < rows * columns:
                self._alike.setdefault((rows, columns), []).append(name)
        random = torch.Generator().manual_seed(seed)
        self._held, self._right = list[Tensor](), list[Tensor]()
        self.errors, self.factors = dict[str, Tensor](), dict[str, Tensor]()
        for (rows, columns), names in self._alike.items():
            self._held.append(torch.zeros(len(names), rows, columns, device=ranks.device))
            self._right.append(torch.randn(len(names), columns, rank, generator=random).to(ranks.device))
            for name, held, right in zip(names, self._held[-1], self._right[-1], strict=True):
                self.errors[name], self.factors[name] = held.view(named[name].shape), right

    def average(self, gradient: Gradient) -> tuple[Gradient, dict[str, Traffic]]:
        """Return it; see Compressor."""
        sent: list[int] = []
        whole = [name for name in gradient if name not in self.errors]
        found = dict(zip(whole, self._average([gradient[name] for name in whole], sent), strict=True))
        for held, (shape, names) in zip(self._held, self._alike.items(), strict=True):
            held += torch.stack([gradient[name].reshape(shape) for name in names])
        left = self._average([held @ right for held, right in zip(self._held, self._right, strict=True)], sent)
        left = [torch.linalg.qr(part).Q for part in left]
        means = self._average([held.mT @ part for held, part in zip(self._held, left, strict=True)], sent)
        for names, held, right, part, mean in zip(
            self._alike.values(), self._held, self._right, left, means, strict=True
        ):
            taken = part @ right.copy_(mean).mT
            held -= taken
            found |= {name: one.view(gradient[name].shape) for name, one in zip(names, taken, strict=True)}
        return found, {ALL_REDUCE: Traffic(len(sent), sum(sent))}

    def _average(self, tensors: Sequence[Tensor], sent: list[int]) -> list[Tensor]:
        """Return the mean of each over the ranks; note the bytes of the exchange, which is one."""
        if not tensors:
            return []
        flat = torch.cat([part.reshape(-1) for part in tensors])
        dist.all_reduce(flat, group=self._group)
        sent.append(flat.nbytes)
        return split_like(flat.div_(self._ranks.world_size), tensors)


def shape_as_matrix(part: Tensor) -> tuple[int, int]:
    """Return rows and columns: the first dimension against all others, of a vector a column."""
    rows = len(part) if part.dim() > 1 else part.numel()
    return rows, part.numel() // rows


class EightBits:
    """Every number in 8 bits: which of 127 even parts of the largest one of its block, and the sign.

    As QSGD (Alistarh et al. 2017) with its buckets scaled by their largest number, but rounded to the nearest level,
    which error feedback allows. No block is of two parameters. All ranks gather all ranks' numbers, and add them up in
    one order.
    """

    def __init__(self, named: Mapping[str, Tensor], ranks: Ranks) -> None:
        self._ranks = ranks
        self._group: Any = ranks.gradient_group
        self.errors = {name: torch.zeros_like(part, device=ranks.device) for name, part in named.items()}
        self.factors: dict[str, Tensor] = {}
        names, sizes = list(named), [part.nbytes for part in named.values()]
        self.parcels = [names[parcel] for parcel in split_into_parcels(sizes)]

    def average(self, gradient: Gradient) -> tuple[Gradient, dict[str, Traffic]]:
        """Return it; see Compressor."""
        found, num_bytes = dict[str, Tensor](), 0
        for names in self.parcels:
            parts = [self.errors[name] for name in names]
            torch._foreach_add_(parts, [gradient[name] for name in names])
            packed = pack(torch.cat([F.pad(part.reshape(-1), (0, -part.numel() % BLOCK)) for part in parts]))
            everyones = packed.new_empty(self._ranks.world_size, packed.numel())
            dist.all_gather(list(everyones.unbind()), packed, group=self._group)
            num_bytes += packed.nbytes
            total = unpack(everyones[0])
            for theirs in everyones[1:]:
                total += unpack(theirs)
            found |= zip(names, _cut(total.div_(self._ranks.world_size), parts), strict=True)
            torch._foreach_sub_(parts, list(_cut(unpack(packed), parts)))
        return found, {ALL_GATHER: Traffic(len(self.parcels), num_bytes)}


def pack(numbers: Tensor) -> Tensor:
    """Return whole blocks of numbers, (n,) float32, in 8 bits each and a float32 per block: uint8."""
    blocks = numbers.view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / _LEVELS
    # Of a block of zeros the scale is 0, of one that is not finite it is not.
    levels = (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)).round().to(torch.int8)
    return torch.cat([levels.view(-1).view(torch.uint8), scales.view(-1).view(torch.uint8)])


def unpack(packed: Tensor) -> Tensor:
    """Return the numbers that were packed, each rounded to its level: (n,) float32."""
    num_blocks = packed.numel() // (BLOCK + 4)
    levels, scales = packed.split([num_blocks * BLOCK, num_blocks * 4])
    # A copy begins where a float32 may.
    return (levels.view(torch.int8).view(-1, BLOCK) * scales.clone().view(torch.float32).view(-1, 1)).view(-1)


def _cut(numbers: Tensor, parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield what is each part's of whole blocks, in its shape."""
    sizes = [-(-part.numel() // BLOCK) * BLOCK for part in parts]
    for piece, part in zip(numbers.split(sizes), parts, strict=True):
        yield piece[: part.numel()].view(part.shape)
