"""A number with its interval: as it is measured, and as every record of what was measured holds it."""

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval."""

    # What pydantic reads of a class that does without it, as the benchmark of one GPU has to.
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    value: float
    """The figure."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    @property
    def relative_half_width(self) -> float:
        """Half the interval's length / the figure; infinite where that is 0."""
        return abs((self.high - self.low) / 2 / self.value) if self.value else math.inf

    @property
    def holds_one(self) -> bool:
        """Whether the interval contains 1, so that a ratio says nothing."""
        return self.contains(1.0)

    def contains(self, number: float) -> bool:
        """Return whether the number lies inside, ends included."""
        return self.low <= number <= self.high
