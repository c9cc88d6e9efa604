"""How far two sets of tensors are apart, and how far they may be, given how far re-ordered sums are apart."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.records.compared_update import Difference

if TYPE_CHECKING:
    from torch import Tensor

MARGIN = 10.0
"""How many times the noise floor may be exceeded."""
FP32_EPS = 2.0**-23
"""Gradients are added, and weights kept, in fp32 whatever the precision of forward and backward."""


def compute_difference(
    found: Mapping[str, "Tensor"], expected: Mapping[str, "Tensor"], *, since: Mapping[str, "Tensor"] | None = None
) -> Difference:
    """Return how far `found` is from `expected`, over its names; relative to `expected`, or to what it changed `since`.

    Raises ValueError if a tensor is missing or has another shape.
    """
    squares: dict[str, float] = {}
    norm = max_abs = 0.0
    is_equal = True
    for name, right in expected.items():
        left = found.get(name)
        if left is None or left.shape != right.shape:
            raise ValueError(f"{name} is {'missing' if left is None else f'of shape {list(left.shape)}'}")
        exact = right.double()
        apart = (left.double() - exact).abs_()
        squares[name] = float((apart * apart).sum())
        norm += float(((exact if since is None else exact - since[name].double()) ** 2).sum())
        max_abs = max(max_abs, float(apart.max()) if apart.numel() else 0.0)
        is_equal = is_equal and left.equal(right)
    total = sum(squares.values())
    return Difference(
        max_abs=max_abs,
        relative_l2=(total / norm) ** 0.5 if norm else float(total > 0),
        is_bitwise_equal=is_equal,
        largest_in=None if is_equal else max(squares, key=lambda name: squares[name]),
    )


EXCHANGE_EPS = {"none": FP32_EPS, "bf16": 2.0**-15, "fp16": 2.0**-17}
"""What the rounding of fp32 becomes in a gradient exchanged in 16 bit.

A sum that is off by 2^-23 falls on the other side of a boundary of bf16 once in 2^15 times, and is then off by 2^-8: in
the L2 norm of all elements 2^-15.5.
"""


def compute_tolerance(noise_floor: float, rounding: float = FP32_EPS) -> float:
    """Return the relative L2 difference that a right trainer stays below, given that of re-ordered sums.

    MARGIN x the floor; and MARGIN x `rounding`, that of fp32, where the floor is smaller than that, as it is where
    there are too few terms to re-order.
    """
    return MARGIN * max(noise_floor, rounding)


_ROUNDINGS = 4
"""Of every weight in an update: decay and step, in two kernels that need not be the same."""


def compute_update_rounding(after: Mapping[str, "Tensor"], *, since: Mapping[str, "Tensor"]) -> float:
    """Return what rounding every weight once in fp32 comes to, relative to what the update changed in them (L2)."""
    norm = sum(float((part.double() ** 2).sum()) for part in after.values())
    change = sum(float(((part.double() - since[name].double()) ** 2).sum()) for name, part in after.items())
    return FP32_EPS / 2 * (norm / change) ** 0.5 if change else 0.0


def compute_update_tolerance(noise_floor: float) -> float:
    """Return the difference that a right update with the same gradient stays below, relative to what it changes.

    A few roundings of the weights, and MARGIN x the rounding of what is added to them.
    """
    return MARGIN * FP32_EPS + _ROUNDINGS * noise_floor
