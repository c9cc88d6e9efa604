"""How sure a measured number is: Student's t over turns, and over the starts of the ranks that the turns belong to.

A figure of several launches has two levels of noise (Kalibera and Jones 2013, Rigorous Benchmarking in Reasonable
Time): from turn to turn, and from start to start of the ranks. Turns of one launch are alike, so that many of them do
not tell how another launch would have been. The interval is the wider of two: Student's t over the means of the
launches, which holds whatever turns of one launch have in common, and over all turns, which guards against few launches
that are alike by luck. Where turns show nothing in common, the first of the two is taken at `_RISK_OF_STARTS` times the
risk: with both at 95 %, intervals of equal starts cover 98 %. Where neighbouring turns are alike beyond `ALIKE`, the
machine may change more slowly than a launch lasts; where one turn has more of the scatter than chance gives it, stalls
are too rare to have been seen often enough. The interval is then `WIDENED` times as wide. On simulated machines
(tests/noisy_machine.py) it covers as often as it says.

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

ALIKE = 0.2
"""Autocorrelation of neighbouring turns beyond which the machine is said to change more slowly than was measured."""
_CHANCE = 0.05
"""Probability that one of several normal turns has more of the scatter than the critical share. Beyond that share, what
happens so rarely was hardly seen often enough."""
FEWEST_TURNS = 4
"""Of a single launch: an interval of fewer would be too wide to say anything."""
FEWEST_LAUNCHES = 3
"""Starts of every arm behind anything that several launches are measured for."""
WIDENED = 1.75
"""On simulated machines whose arms stray by 5 % within 10 s, or whose ranks stall, intervals need this factor."""
_RISK_OF_STARTS = 2
"""Of missing the true value, times that of the interval, for launches of up to `_FEW_TURNS` turns; where starts differ
by about as much as turns do, both together still cover 94 %. In longer launches what turns have in common shows less
in their neighbours, and starts that differ decide more."""
_FEW_TURNS = 6


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
    found = _require_values(values, above_zero=False)
    mean = _compute_mean(found)
    half_width = _compute_half_width([one - mean for one in found], confidence)
    return Estimate(mean, mean - half_width, mean + half_width)


def compute_autocorrelation(apart: Sequence[NDArray[np.float64]]) -> float:
    """Return the correlation of neighbouring turns of a launch around the mean of all, 0..1.

    `apart`: launch -> (num_turns,) differences from a common mean. Few turns show less of it than there is, which is
    corrected for (Marriott and Pope 1954, Biometrika 41).
    """
    every = np.concatenate(apart)
    pairs = sum(len(one) - 1 for one in apart)
    variance = float((every - every.mean()).var())
    if not pairs or not variance:
        return 0.0
    together = sum(float((one[1:] - every.mean()) @ (one[:-1] - every.mean())) for one in apart)
    found = together / pairs / variance
    return min(max(found + (1 + 3 * max(found, 0.0)) / len(every), 0.0), 1.0)


def find_doubts(numerator: Launches, denominator: Launches) -> tuple[float | None, float | None]:
    """Return why the interval of a ratio is `WIDENED` times as wide: the autocorrelation of its turns, and the share of
    the scatter that a single one has; None of what is no reason."""
    return _find_doubts(_take_apart(numerator, denominator)[1])


def compute_trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the tenth of the values at each end."""
    from scipy.stats import trim_mean

    return float(trim_mean(values, 0.1))


def count_needed_turns(num_turns: int, half_width: float, asked: float) -> int:
    """Return how many turns like these bring an interval from one half-width to another: it falls with their root."""
    return math.ceil(num_turns * (half_width / asked) ** 2)


def _compute_half_width(apart: Sequence[NDArray[np.float64]], confidence: float) -> float:
    """Return the half-width of the interval of a mean, from each turn's difference from it, launch by launch."""
    alike, largest = _find_doubts(apart)
    widest = _compute_students_half_width(np.concatenate(apart), confidence)
    if len(apart) > 1:
        is_doubled = alike is None and sum(map(len, apart)) <= _FEW_TURNS * len(apart)
        of_starts = 1 - _RISK_OF_STARTS * (1 - confidence) if is_doubled else confidence
        means = np.array([one.mean() for one in apart])
        widest = max(widest, _compute_students_half_width(means, max(of_starts, 0.0)))
    return widest * (1.0 if alike is None and largest is None else WIDENED)


def _compute_students_half_width(values: NDArray[np.float64], confidence: float) -> float:
    from scipy.special import stdtrit  # importing it takes a third of a second, which reports need not spend

    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, 0.5 + confidence / 2)) * error


def _find_doubts(apart: Sequence[NDArray[np.float64]]) -> tuple[float | None, float | None]:
    every = np.concatenate(apart)
    alike, largest = compute_autocorrelation(apart), compute_largest_part(every)
    return alike if alike > ALIKE else None, largest if largest > compute_chance_part(len(every)) else None


def compute_chance_part(num_turns: int) -> float:
    """Return the share of the scatter that one of so many normal turns has more than once in twenty times, 0..1.

    The critical value of Grubbs' test, squared (Grubbs 1950, Annals of Mathematical Statistics 21), over num_turns - 1.
    """
    if num_turns < FEWEST_TURNS:
        return 1.0
    from scipy.special import stdtrit

    square = float(stdtrit(num_turns - 2, 1 - _CHANCE / (2 * num_turns))) ** 2
    return (num_turns - 1) / num_turns * square / (num_turns - 2 + square)


def compute_largest_part(apart: NDArray[np.float64]) -> float:
    """Return the share of the scatter (sum of squares around the mean) that a single turn has, 0..1."""
    squares = (apart - apart.mean()) ** 2
    return float(squares.max() / squares.sum()) if squares.any() else 0.0


def _take_apart(numerator: Launches, denominator: Launches) -> tuple[float, list[NDArray[np.float64]]]:
    """Return the ratio of means, and by how much of it each turn is off, launch by launch."""
    if [len(launch) for launch in numerator] != [len(launch) for launch in denominator]:
        raise ValueError(f"turns must pair; got {list(map(len, numerator))} and {list(map(len, denominator))}")
    above, below = _require_values(numerator, above_zero=True), _require_values(denominator, above_zero=True)
    value = _compute_mean(above) / _compute_mean(below)
    return value, [
        (one - value * other) / (value * _compute_mean(below)) for one, other in zip(above, below, strict=True)
    ]


def _compute_mean(launches: Sequence[NDArray[np.float64]]) -> float:
    """Return the mean of the launches' means: a launch counts once, however many of its turns were quiet."""
    return float(np.mean([one.mean() for one in launches]))


def _require_values(values: Launches, *, above_zero: bool) -> list[NDArray[np.float64]]:
    found = [np.asarray(launch, dtype=np.float64) for launch in values if len(launch)]
    every = np.concatenate(found) if found else np.zeros(0)
    is_wrong = ~np.isfinite(every) | ((every <= 0) if above_zero else False)
    if is_wrong.any():
        raise ValueError(f"values must be finite{' and above 0' if above_zero else ''}; got {every[is_wrong][0]}")
    if (len(found) == 1 and len(every) < FEWEST_TURNS) or len(found) in (0, 2):
        raise ValueError(
            f"{len(every)} turns of {len(found)} launches give no interval; allowed: {FEWEST_TURNS} turns of one "
            f"launch, or at least {FEWEST_LAUNCHES} launches"
        )
    return found
