"""How sure a measured number is: Student's t over turns, and over the launches of the ranks that the turns belong to.

A figure of several launches has two levels of noise (Kalibera and Jones 2013, Rigorous Benchmarking in Reasonable
Time): from turn to turn, and from launch to launch of the ranks. Turns of one launch are alike, so that many of them do
not tell how another launch would have been. The interval is the wider of two: Student's t over the means of the
launches, which holds whatever turns of one launch have in common, and over all turns, which guards against few launches
that are alike by luck.

The interval of a speedup has a floor besides: of sessions that stop at narrow intervals those are narrow that happened
to see no stall, no slow launch and no wander. On simulated machines (tests/tasks/measuring/noisy_machine.py) it then
covers as often as it says.

A ratio is one of means, for that is what users pay: a stall counts with what it cost. Turns are paired, so that what
slows both arms of a turn down cancels (the classical estimator of a ratio; Cochran 1977, Sampling Techniques, 6.3).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.records.estimate import Estimate

Launches = Sequence[Sequence[float]]
"""One figure per turn, launch by launch."""

FEWEST_TURNS = 4
"""Of a single launch: an interval of fewer would be too wide to say anything."""
FEWEST_LAUNCHES = 3
"""Launches of every arm behind anything that several launches are measured for."""
FLOOR = 0.07
"""Relative half-width that the interval of a speedup of `FEWEST_LAUNCHES` has at least; it falls with their root. Ten
sessions of one comparison on a quiet machine of two cores scattered by 2.8 %; a session without one of the simulated
stalls of two ranks misses the truth by 6.75 %."""


def compute_floor(num_launches: int) -> float:
    """Return the relative half-width that the interval of a speedup has at least."""
    # A hair less, so that who asks for it gets it.
    return (FLOOR - 1e-9) * math.sqrt(FEWEST_LAUNCHES / max(num_launches, FEWEST_LAUNCHES))


def count_needed_launches(num_launches: int, half_width: float, asked: float) -> int:
    """Return how many launches bring an interval from one half-width to another, which falls with their root."""
    return math.ceil(num_launches * (half_width / asked) ** 2)


def estimate_speedup(numerator: Launches, denominator: Launches) -> Estimate:
    """Return `estimate_ratio` with an interval that is nowhere within the floor."""
    ratio, floor = estimate_ratio(numerator, denominator), math.exp(math.asinh(compute_floor(len(numerator))))
    return Estimate(ratio.value, min(ratio.low, ratio.value / floor), max(ratio.high, ratio.value * floor))


def estimate_ratio(numerator: Launches, denominator: Launches, *, confidence: float = 0.95) -> Estimate:
    """Return mean(numerator) / mean(denominator) with its interval; both have a value above 0 for every turn.

    Raises ValueError as `estimate_mean`, and for arms whose turns do not pair.
    """
    value, apart = _take_apart(numerator, denominator)
    half_width = _compute_half_width(apart, confidence)
    # On the logarithmic scale, where a ratio and its inverse are as sure as each other.
    return Estimate(value, value * math.exp(-half_width), value * math.exp(half_width))


def estimate_mean(values: Launches, *, confidence: float = 0.95) -> Estimate:
    """Return the mean of the launches' means with its interval, in the unit of the values.

    Raises ValueError for values that are not finite, a confidence outside 0..1, one launch of fewer than
    `FEWEST_TURNS`, or two launches.
    """
    checked = _require_values(values, above_zero=False)
    mean = _compute_mean(checked)
    half_width = _compute_half_width([value - mean for value in checked], confidence)
    return Estimate(mean, mean - half_width, mean + half_width)


def _compute_half_width(apart: Sequence[NDArray[np.float64]], confidence: float) -> float:
    """Return the half-width of the interval of a mean, from each turn's difference from it, launch by launch."""
    widest = _compute_students_half_width(np.concatenate(apart), confidence)
    if len(apart) > 1:
        widest = max(widest, _compute_students_half_width(np.array([item.mean() for item in apart]), confidence))
    return widest


def _compute_students_half_width(values: NDArray[np.float64], confidence: float) -> float:
    from scipy.special import stdtrit  # importing it takes a third of a second, which reports need not spend

    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, 0.5 + confidence / 2)) * error


def _take_apart(numerator: Launches, denominator: Launches) -> tuple[float, list[NDArray[np.float64]]]:
    """Return the ratio of means, and by how much of it each turn is off, launch by launch."""
    if [len(launch) for launch in numerator] != [len(launch) for launch in denominator]:
        raise ValueError(f"turns must pair; got {list(map(len, numerator))} and {list(map(len, denominator))}")
    above, below = _require_values(numerator, above_zero=True), _require_values(denominator, above_zero=True)
    value = _compute_mean(above) / _compute_mean(below)
    return value, [
        (item - value * other) / (value * _compute_mean(below)) for item, other in zip(above, below, strict=True)
    ]


def _compute_mean(launches: Sequence[NDArray[np.float64]]) -> float:
    """Return the mean of the launches' means: a launch counts once, however many of its turns were quiet."""
    return float(np.mean([launch.mean() for launch in launches]))


def _require_values(values: Launches, *, above_zero: bool) -> list[NDArray[np.float64]]:
    results = [np.asarray(launch, dtype=np.float64) for launch in values if len(launch)]
    every = np.concatenate(results) if results else np.zeros(0)
    is_wrong = ~np.isfinite(every) | ((every <= 0) if above_zero else False)
    if is_wrong.any():
        raise ValueError(f"values must be finite{' and above 0' if above_zero else ''}; got {every[is_wrong][0]}")
    if (len(results) == 1 and len(every) < FEWEST_TURNS) or len(results) in (0, 2):
        raise ValueError(
            f"{len(every)} turns of {len(results)} launches give no interval; allowed: {FEWEST_TURNS} turns of one "
            f"launch, or at least {FEWEST_LAUNCHES} launches"
        )
    return results
