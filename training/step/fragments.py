"""Parameters of which every rank has a stretch of elements, or none, in flat tensors, and the whole of each."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from training.process.distributed import Ranks


class Fragment(NamedTuple):
    """What this rank has of a flattened parameter."""

    start: int
    """Its first element in the parameter."""
    length: int
    """Elements; 0: this rank has none of it."""
    flat: int
    """Which of the rank's flat tensors it is in."""
    place: int
    """Its first element there."""

    def cut(self, flat: Tensor) -> Tensor:
        """Return it from a tensor that is laid out as its flat tensor, in place."""
        return flat.detach()[self.place : self.place + self.length]

    def select(self, whole: Tensor) -> Tensor:
        """Return the same elements of a whole parameter."""
        return whole.reshape(-1)[self.start : self.start + self.length]


class Fragments:
    """The fragments of all parameters; what is gathered goes over the ranks' own group, beside what is counted."""

    def __init__(self, ranks: Ranks, own: Mapping[str, Fragment], shapes: Mapping[str, Sequence[int]]) -> None:
        """`own`: parameter -> what this rank has; `shapes`: of the whole. Collective."""
        self.own = own
        self._ranks, self._shapes = ranks, shapes
        said = ranks.gather_json({name: [one.start, one.length] for name, one in own.items()})
        self._spans = {name: [its[name] for its in said] for name in own}
        for name, spans in self._spans.items():
            num_elements, num_held = torch.Size(shapes[name]).numel(), sum(length for _, length in spans)
            assert num_held == num_elements, f"of the {num_elements} elements of {name} the ranks hold {num_held}"

    def gather(self, name: str, flats: Sequence[Tensor]) -> Tensor:
        """Return the whole of a parameter, on the CPU of every rank, from flat tensors of every rank. Collective."""
        own = self.own[name]
        mine = own.cut(flats[own.flat]).cpu()
        whole = torch.empty(torch.Size(self._shapes[name]).numel(), dtype=mine.dtype)
        own.select(whole).copy_(mine)
        if self._ranks.world_size > 1:
            for rank, (start, length) in enumerate(self._spans[name]):
                if length:
                    dist.broadcast(whole[start : start + length], src=rank)
        return whole.view(*self._shapes[name])
