"""How far tensors are from what they should be, and how far they may be, given what re-ordered sums and rounding make.

Tensor by tensor, in fp64: only norms are kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
_STEP_ROUNDINGS = 4
"""Of a step, each of half a unit in its last place, before it is added to a weight."""
_ALIKE = 0.05
"""What is left of a difference, as a share of it, where a factor explains it."""
_LOST = 0.5
"""Of what a tensor alone should change: beyond that, and its own noise, it is another change."""
_NOTHING_LIKE_IT = 1e30
"""Stands for a difference that is no number."""


@dataclass(frozen=True)
class _Sums:
    """Sums of squares over the numbers of a tensor, or of all."""

    largest_in: str | None
    """The tensor with the largest difference."""
    difference: float
    change: float
    size: float
    """Of what is expected."""
    product: float
    """Of the change and what it should be."""
    others: Sequence[float]
    """Of their differences."""

    def relate(self, square: float) -> float:
        """Return the root of a sum as a share of the change, or, of what did not change at all, of what it is."""
        norm = self.change or self.size
        result = math.sqrt(square / norm) if norm else float(square > 0)
        return result if math.isfinite(result) else _NOTHING_LIKE_IT

    @property
    def rounding(self) -> float:
        """What rounding every number once in fp32 comes to."""
        return FP32_EPS / 2 * self.relate(self.size)

    def compare(self, num_orders: int | None, rounding: float, kernel_margin: float) -> Compared:
        """See Differences."""
        others = list(map(self.relate, self.others))
        orders, kernels = others[:num_orders], others[len(others[:num_orders]) :]
        floor = max([*orders, self.rounding, rounding])
        return self.make(max([floor, *kernels]), max([MARGIN * floor, *(kernel_margin * kernel for kernel in kernels)]))

    def make(self, floor: float, tolerance: float) -> Compared:
        """Return what is to be known, with this noise floor and this tolerance."""
        return Compared(
            difference=self.relate(self.difference), noise_floor=floor, tolerance=tolerance, largest_in=self.largest_in
        )


class Differences:
    """Of one kind of tensor, over all parameters; all differences are relative to what changes."""

    def __init__(self) -> None:
        self._tensors: list[_Sums] = []

    def add(
        self, name: str, tensor: "Tensor", expected: "Tensor", *, since: "Tensor", others: Sequence["Tensor"] = ()
    ) -> None:
        """Take a `tensor` that was `since` and should be `expected`, or one of `others`, which are as right."""
        exact, start = expected.double().flatten(), since.double().flatten()
        change, own = exact - start, tensor.double().flatten() - start
        squares = (own - change, change, exact, *(other.double().flatten() - exact for other in others))
        difference, its, size, *apart = (float(part.dot(part)) for part in squares)
        product = float(own.dot(change))
        self._tensors.append(_Sums(name if difference else None, difference, its, size, product, apart))

    def add_rounded(self, name: str, tensor: "Tensor", expected: Sequence["Tensor"], *, since: "Tensor") -> None:
        """Take a tensor of fp32 that was `since` and should be the first of `expected`, fp64, as fp32 rounds it.

        The others are the same with a rounding on the way, as kernels make it: number by number the nearest counts.
        What is left are numbers that a step, rounded a few times itself, brings to the other side of a boundary.
        """
        exact, start, mine = (part.double().flatten() for part in (expected[0], since, tensor))
        apart = (mine - exact.float().double()).abs()
        for other in expected[1:]:
            apart = apart.minimum((mine - other.flatten().float().double()).abs())
        change = exact - start
        size = 4 * _STEP_ROUNDINGS * float(change.abs().dot(exact.abs()))
        difference, its, product = float(apart.dot(apart)), float(change.dot(change)), float((mine - start).dot(change))
        unit = FP32_EPS * float(exact.abs().max()) if len(exact) else 0.0
        self._tensors.append(_Sums(name if difference else None, difference, its, size, product, [unit**2]))

    @property
    def _whole(self) -> _Sums:
        tensors = self._tensors
        largest = max(tensors, key=lambda sums: sums.difference).largest_in if tensors else None
        names = ("difference", "change", "size", "product")
        sums = {name: sum(getattr(item, name) for item in tensors) for name in names}
        others = [sum(parts) for parts in zip(*(item.others for item in tensors), strict=True)]
        return _Sums(largest_in=largest, others=others, **sums)

    @property
    def ratio(self) -> float | None:
        """How many times as large the change is as it should be, where that is about all that is wrong; else None."""
        whole = self._whole
        if not whole.change:
            return None
        times = whole.product / whole.change
        rest = whole.relate(whole.difference) ** 2 - (times - 1) ** 2
        return times if rest < (_ALIKE * max(abs(times - 1), _ALIKE)) ** 2 else None

    def compare(
        self, *, num_orders: int | None = None, rounding: float = FP32_EPS, kernel_margin: float = 1.0
    ) -> Compared:
        """Return what is to be known of it: MARGIN x the largest of these floors is allowed.

        The floors are how far the first `num_orders` others are from what is expected (None: all), rounding, and
        `rounding`. The rest of the others, which other kernels have made, may be `kernel_margin` x as far. It is that
        of all tensors together or, where one was changed otherwise, of that one.
        """
        changed = (sums for sums in self._tensors if sums.change)
        whole, *each = (sums.compare(num_orders, rounding, kernel_margin) for sums in (self._whole, *changed))
        return next((item for item in each if item.difference > max(MARGIN * item.noise_floor, _LOST)), whole)

    def compare_rounded(self) -> Compared:
        """Return the same of what comes of the same numbers on both sides: a few roundings of each are allowed.

        Of all tensors together or, where one is farther off than its own roundings make it, of that one: a small one
        that is wrong is nothing among millions of numbers. One of few numbers may be a unit in the last place off.
        """
        whole, *each = (
            sums.make(sums.rounding, MARGIN * FP32_EPS + _ROUNDINGS * sums.rounding + sum(map(sums.relate, units)))
            for sums, units in ((self._whole, []), *((sums, sums.others) for sums in self._tensors))
        )
        worst = max(each, key=lambda item: item.difference / item.tolerance, default=whole)
        return worst if worst.difference > worst.tolerance else whole


def compare_numbers(value: float, expected: float, tolerance: float) -> Compared:
    """Return how far one number is off, relative to what it should be."""
    size = abs(expected) or 1.0
    difference = abs(value - expected) / size if math.isfinite(value) else _NOTHING_LIKE_IT
    return Compared(difference=difference, noise_floor=0.0, tolerance=tolerance)
