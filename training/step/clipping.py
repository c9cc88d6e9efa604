"""Scaling a gradient down by the norm of the whole, where a rank has a part of it."""

from collections.abc import Sequence

import torch
from torch import Tensor

_EPSILON = 1e-6
"""Beside the norm that a gradient is divided by, as torch's own clipping has it."""


def clip_part(mine: Sequence[Tensor], squares: Tensor, *, most: float) -> Tensor:
    """Scale this rank's part of the gradient so that the whole has no larger norm than `most`; return what it had.

    `squares`, () float64: the sum of the squares of the whole.
    """
    norm = squares.sqrt().float()
    scale_down(mine, norm, most=most)
    return norm


def scale_down(mine: Sequence[Tensor], norm: Tensor, *, most: float) -> None:
    """Scale this rank's part of a gradient of that norm so that the whole has no larger one than `most`."""
    torch._foreach_mul_(list(mine), torch.clamp(most / (norm + _EPSILON), max=1.0))
