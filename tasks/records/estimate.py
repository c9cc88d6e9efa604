"""A number with its interval, and the speedup, as the stage `measure` makes them and everything else reads them."""

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

    def times(self, factor: float) -> "Estimate":
        """Return the figure and its interval times a factor above 0."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Speedup(Estimate):
    """How many times as fast as the baseline a cell is per unit of work, over the quiet turns, and what follows."""

    of_all_turns: Estimate
    """The same over all turns, loud ones too."""
    of_medians: float
    """Ratio of the medians of the quiet turns: without the stalls that the means have in them."""
    baseline_step_seconds: float
    """Seconds per step of the baseline in the turns that count for this cell; in weak scaling in all that count."""
    parallel_efficiency: Estimate
    """Share of linear speedup that was reached, 1.0 is linear, with the speedup's interval."""
    karp_flatt: float | None
    """Experimentally determined serial fraction; null for one rank, and against a baseline of several."""

    @property
    def device_time(self) -> Estimate:
        """Device time for the same work / the baseline's: 1 / parallel efficiency, whose ends change places."""
        share = self.parallel_efficiency
        return Estimate(1 / share.value, 1 / share.high, 1 / share.low)


def make_speedup(
    estimate: Estimate,
    *,
    of_all_turns: Estimate,
    of_medians: float,
    baseline_step_seconds: float,
    world_size: int,
    baseline_world_size: int,
) -> Speedup:
    """Return the speedup with what follows from it.

    Efficiency a little above 1.0 is possible (caches), but first suspect unequal work of the two cells; a serial
    fraction below 0 says that the baseline is unfair. Sources: Grama et al. 2003, Introduction to Parallel Computing,
    5.2; Karp and Flatt 1990, CACM 33(5). Raises ValueError if a world size is below 1.
    """
    if world_size < 1 or baseline_world_size < 1:
        raise ValueError(f"world_size must be at least 1; got {world_size} and {baseline_world_size}")
    has_fraction = world_size > 1 and baseline_world_size == 1
    return Speedup(
        estimate.value,
        estimate.low,
        estimate.high,
        of_all_turns=of_all_turns,
        of_medians=of_medians,
        baseline_step_seconds=baseline_step_seconds,
        parallel_efficiency=estimate.times(baseline_world_size / world_size),
        karp_flatt=(1 / estimate.value - 1 / world_size) / (1 - 1 / world_size) if has_fraction else None,
    )
