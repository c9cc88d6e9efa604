"""Scaling a gradient down by the norm of the whole, where a rank has a part of it, and where the ranks' number must not
change a bit."""

from collections.abc import Sequence

import torch
from torch import Tensor

_EPSILON = 1e-6
"""Beside the norm that a gradient is divided by, as torch's own clipping has it."""

_ELEMENTS_AT_ONCE = 2**22
"""In fp64 meanwhile."""


def clip_part(mine: Sequence[Tensor], squares: Tensor, *, most: float) -> Tensor:
    """Scale this rank's part of the gradient so that the whole has no larger norm than `most`; return what it had.

    `squares`, () float64: the sum of the squares of the whole.
    """
    norm = squares.sqrt().float()
    torch._foreach_mul_(list(mine), torch.clamp(most / (norm + _EPSILON), max=1.0))
    return norm


def clip_by_rows(gradient: Sequence[Tensor], *, most: float) -> Tensor:
    """Scale a whole gradient so; its norm is made of the norms of rows, of which each is on one rank wherever there are
    several."""
    return clip_part(gradient, sum_squares([compute_row_norms(part) for part in gradient]), most=most)


def compute_row_norms(part: Tensor) -> Tensor:
    """Return the norm of every row, of what lies behind an index of the first dimension: (num_rows,) float64.

    That of a row does not depend on how many others there are.
    """
    if not part.numel():
        return part.new_zeros(len(part), dtype=torch.float64)
    rows = part.reshape(len(part) if part.ndim else 1, -1)
    at_once = max(1, _ELEMENTS_AT_ONCE // rows.shape[1])
    return torch.cat([_compute_norms(piece) for piece in rows.split(at_once)])


def _compute_norms(rows: Tensor) -> Tensor:
    # torch adds up a single row in as many pieces as there are threads, each of several by itself.
    several = rows if len(rows) > 1 else torch.cat([rows, rows])
    return torch.linalg.vector_norm(several, dim=1, dtype=torch.float64)[: len(rows)]


def sum_squares(row_norms: Sequence[Tensor]) -> Tensor:
    """Return the sum of the squares of what has these norms: () float64."""
    return torch.cat(list(row_norms)).square().sum()
