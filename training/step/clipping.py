"""Scaling a gradient down by the norm of the whole, where a rank has a part of it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_EPSILON = 1e-6
"""Beside the norm that a gradient is divided by, as torch's own clipping has it."""


def clip_part(mine: Sequence[Tensor], squares: Tensor, *, most: float) -> Tensor:
    """Scale this rank's part of the gradient so that the whole has no larger norm than `most`; return what it had.

    `squares`, () float64: the sum of the squares of the whole.
    """
    norm = squares.sqrt().float()
    torch._foreach_mul_(list(mine), torch.clamp(most / (norm + _EPSILON), max=1.0))
    return norm


class Squares:
    """The squares of the norms of what one rank has of a model, in the places that these have in the whole.

    What says where they belong is on the device from the start: a list that becomes a tensor there in a step would have
    the host wait for it.
    """

    def __init__(self, names: Sequence[str], counted: Mapping[str, bool], device: torch.device) -> None:
        """`names`: of all parameters; `counted`: of those that this rank has, whether they count here or elsewhere."""
        places = {name: place for place, name in enumerate(names)}
        self._names, self._number = list(counted), len(names)
        self._places = torch.tensor([places[name] for name in counted], dtype=torch.int64, device=device)
        self._counts = torch.tensor([float(value) for value in counted.values()], dtype=torch.float64, device=device)

    def collect(self, gradient: Mapping[str, Tensor]) -> Tensor:
        """Return them, 0 where there is no gradient: (all parameters,) float64."""
        found = torch.zeros(self._number, dtype=torch.float64, device=self._counts.device)
        if gradient:
            norms = dict(zip(gradient, torch._foreach_norm(list(gradient.values())), strict=True))
            without = torch.zeros_like(next(iter(norms.values())))
            every = torch.stack([norms.get(name, without) for name in self._names]).double()
            found[self._places] = every.square() * self._counts
        return found
