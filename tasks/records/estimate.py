"""A number with its interval, as every record of what was measured holds it."""

from tasks.records.facts import Record


class Estimate(Record):
    """A figure with its interval."""

    value: float
    """The figure."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    @property
    def relative_half_width(self) -> float:
        """Half the interval's length / the figure."""
        return (self.high - self.low) / 2 / abs(self.value)

    @property
    def holds_one(self) -> bool:
        """Whether the interval contains 1, so that a ratio says nothing."""
        return self.low <= 1 <= self.high
