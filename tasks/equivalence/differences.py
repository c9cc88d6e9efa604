"""How far tensors are from what they should be, and how far they may be, given what re-ordered sums and rounding make.

Tensor by tensor, in fp64: only norms are kept.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.records.checked_update import Compared

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

MARGIN = 10.0
"""How many times the noise floor may be exceeded."""
FP32_EPS = 2.0**-23
"""Gradients are added, and weights kept, in fp32 whatever the precision of forward and backward."""
EXCHANGE_EPS = {"none": FP32_EPS, "bf16": 2.0**-15, "fp16": 2.0**-17}
"""What the rounding of fp32 becomes in a gradient exchanged in 16 bit.

A sum that is off by 2^-23 falls on the other side of a boundary of bf16 once in 2^15 times, and is then off by 2^-8: in
the L2 norm of all elements 2^-15.5.
"""
_ROUNDINGS = 2
"""Of every weight in an update, by decay and by step: each is of half a unit in the last place at most."""
_ALIKE = 0.05
"""What is left of a difference, as a share of it, where a factor explains it."""
_NOTHING_LIKE_IT = 1e30
"""Stands for a difference that is no number."""


class Differences:
    """Of one kind of tensor, over all parameters; all differences are relative to what changes."""

    def __init__(self, num_others: int = 0) -> None:
        self._squares: dict[str, float] = {}
        self._rounded: dict[str, Compared] = {}
        """Tensor by tensor: what comes of the same numbers on both sides."""
        self._change = self._size = self._product = 0.0
        self._others = [0.0] * num_others

    def add(
        self, name: str, tensor: "Tensor", expected: "Tensor", *, since: "Tensor", others: Sequence["Tensor"] = ()
    ) -> None:
        """Take a `tensor` that was `since` and should be `expected`, or one of `others`, which are as right."""
        exact, start = expected.double(), since.double()
        change, own = exact - start, tensor.double() - start
        self._squares[name] = float((own - change).square().sum())
        squares = float(change.square().sum()), float(exact.square().sum())
        self._change += squares[0]
        self._size += squares[1]
        self._rounded[name] = _compare_rounded(name, self._squares[name], *squares)
        self._product += float((own * change).sum())
        for place, other in enumerate(others):
            self._others[place] += float((other.double() - exact).square().sum())

    @property
    def relative_l2(self) -> float:
        """L2 norm of the differences / L2 norm of the change."""
        return self._relate(sum(self._squares.values()))

    @property
    def others(self) -> list[float]:
        """The same of the others that are as right."""
        return [self._relate(other) for other in self._others]

    @property
    def rounding(self) -> float:
        """What rounding every number once in fp32 comes to."""
        return FP32_EPS / 2 * self._relate(self._size)

    @property
    def ratio(self) -> float | None:
        """How many times as large the change is as it should be, where that is about all that is wrong; else None."""
        if not self._change:
            return None
        times = self._product / self._change
        rest = self.relative_l2**2 - (times - 1) ** 2
        return times if rest < (_ALIKE * max(abs(times - 1), _ALIKE)) ** 2 else None

    @property
    def largest_in(self) -> str | None:
        """The tensor with the largest difference."""
        return max(self._squares, key=self._squares.__getitem__) if any(self._squares.values()) else None

    def _relate(self, square: float) -> float:
        # Of what did not change at all: relative to what it is.
        norm = self._change or self._size
        result = math.sqrt(square / norm) if norm else float(square > 0)
        return result if math.isfinite(result) else _NOTHING_LIKE_IT

    def compare(
        self, *, num_orders: int | None = None, rounding: float = FP32_EPS, kernel_margin: float = 1.0
    ) -> Compared:
        """Return what is to be known of it: MARGIN x the largest of these floors is allowed.

        The floors are how far the first `num_orders` others are from what is expected (None: all), rounding, and
        `rounding`. The rest of the others, which other kernels have made, may be `kernel_margin` x as far.
        """
        orders, kernels = self.others[:num_orders], self.others[len(self.others[:num_orders]) :]
        floor = max([*orders, self.rounding, rounding])
        return self._make(
            max([floor, *kernels]), max([MARGIN * floor, *(kernel_margin * kernel for kernel in kernels)])
        )

    def compare_rounded(self) -> Compared:
        """Return the same of what comes of the same numbers on both sides: a few roundings of each are allowed.

        Of all tensors together or, where one is farther off than its own roundings make it, of that one: a small one
        that is wrong is nothing among millions of numbers.
        """
        whole = self._make(self.rounding, MARGIN * FP32_EPS + _ROUNDINGS * self.rounding)
        worst = max(self._rounded.values(), key=lambda item: item.difference / item.tolerance, default=whole)
        return worst if worst.difference > worst.tolerance else whole

    def _make(self, floor: float, tolerance: float) -> Compared:
        return Compared(difference=self.relative_l2, noise_floor=floor, tolerance=tolerance, largest_in=self.largest_in)


def _compare_rounded(name: str, square: float, change: float, size: float) -> Compared:
    norm = change or size
    difference, rounding = (math.sqrt(part / norm) if norm else float(part > 0) for part in (square, size))
    floor = FP32_EPS / 2 * rounding
    return Compared(
        difference=difference if math.isfinite(difference) else _NOTHING_LIKE_IT,
        noise_floor=floor,
        tolerance=MARGIN * FP32_EPS + _ROUNDINGS * floor,
        largest_in=name,
    )


def compare_numbers(value: float, expected: float, tolerance: float) -> Compared:
    """Return how far one number is off, relative to what it should be."""
    size = abs(expected) or 1.0
    difference = abs(value - expected) / size if math.isfinite(value) else _NOTHING_LIKE_IT
    return Compared(difference=difference, noise_floor=0.0, tolerance=tolerance)
