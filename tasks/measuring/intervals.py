"""How sure a measured number is: intervals of medians and of their ratios, by a paired bootstrap.

The unit is the trial: one value per arm from one round of interleaved blocks (tasks/measuring/interleaving.py), never a
step, because neighbouring steps are alike. Two things make the intervals cover what they say on a machine that drifts:

- Rounds are levelled: each is divided by its own level, the geometric mean of its arms, before medians are taken. What
  slows a whole round down then cancels. Without it the medians of two arms may come from different rounds: on a
  simulated machine with strong drift the interval was three times as wide.
- A percentile interval of few trials is too short. Its percentiles are moved outwards as far as Student's t lies
  outside the normal distribution. Source: Hesterberg 2015, What Teachers Should Know About the Bootstrap, The American
  Statistician 69(4), 3.3. Acceleration (BCa) needs a smooth statistic, which a median is not.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

NUM_DRAWS = 10_000
"""Resamplings behind an interval."""

Medians = Mapping[str, NDArray[np.float64]]
"""Arm -> its median in each resampling: (num_draws,) float64."""
Statistic = Callable[[Medians], NDArray[np.float64]]
"""What is wanted, computed from the medians element by element: (num_draws,) float64."""


@dataclass(frozen=True)
class Interval:
    """A measured number and the interval that covers the true one."""

    value: float
    """The number itself, from all trials."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    @property
    def relative_half_width(self) -> float:
        """Half the width / the value; infinite where the value is 0."""
        return abs((self.high - self.low) / 2 / self.value) if self.value else math.inf

    def contains(self, number: float) -> bool:
        """Return whether the number lies inside, ends included."""
        return self.low <= number <= self.high

    def as_json(self) -> dict[str, float]:
        """Return the fields."""
        return asdict(self)


def bootstrap_statistic(
    arms: Mapping[str, Sequence[float]],
    statistic: Statistic,
    *,
    seed: int,
    confidence: float = 0.95,
    num_draws: int = NUM_DRAWS,
) -> Interval:
    """Return the interval of a function of the arms' medians; entry i of every arm comes from the same round.

    The medians handed to `statistic` are those of the levelled rounds times the median level, so they carry the unit
    of the values. For one arm that is its plain median.
    Raises ValueError for arms of different lengths, values that are not above 0, or too few trials for the confidence.
    """
    values = _require_values(arms, confidence)
    num_trials = values.shape[1]
    level = np.exp(np.log(values).mean(axis=0))
    rows = dict(zip(arms, values / level, strict=True))
    drawn = np.random.default_rng(seed).integers(0, num_trials, size=(num_draws, num_trials))
    found = statistic(_compute_medians(rows, level, np.arange(num_trials)[None, :]))
    draws = statistic(_compute_medians(rows, level, drawn))
    tail = _compute_tail(confidence, num_trials)
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(value=float(found[0]), low=float(low), high=float(high))


def bootstrap_median(
    values: Sequence[float], *, seed: int, confidence: float = 0.95, num_draws: int = NUM_DRAWS
) -> Interval:
    """Return the median with its interval, in the unit of the values.

    There is no second arm for drift to cancel against: it covers the median of a machine whose rounds are independent,
    and is too short for one that drifts more slowly than a round lasts.
    """
    return bootstrap_statistic(
        {"values": values}, lambda of: of["values"], seed=seed, confidence=confidence, num_draws=num_draws
    )


def bootstrap_median_ratio(
    numerator: Sequence[float],
    denominator: Sequence[float],
    *,
    seed: int,
    confidence: float = 0.95,
    num_draws: int = NUM_DRAWS,
) -> Interval:
    """Return median(numerator) / median(denominator), of levelled rounds, with its interval.

    Dividing two printed medians gives nearly the same number, not the same: those are not levelled.
    """
    arms = {"numerator": numerator, "denominator": denominator}
    return bootstrap_statistic(
        arms, lambda of: of["numerator"] / of["denominator"], seed=seed, confidence=confidence, num_draws=num_draws
    )


def count_needed_trials(confidence: float) -> int:
    """Return below how many trials no such interval of a median exists.

    From the smallest to the largest of n trials covers the median with probability 1 - 2^(1-n), and no percentile lies
    outside. Raises ValueError if confidence is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1; got {confidence}")
    return math.ceil(1 - math.log2(1 - confidence))


def count_needed_pairs(cv: float, half_width: float) -> int:
    """Return how many pairs bring the 95 % interval of a ratio down to a relative half-width.

    `cv` is the standard deviation of a trial / its mean. For normally distributed, unrelated trials and their means:
    medians need about 1.6 times as many of these, fewer where there are outliers or what slows both arms alike.
    Raises ValueError if cv is below 0 or half_width not above 0.
    """
    if cv < 0 or half_width <= 0:
        raise ValueError(f"cv must be at least 0 and half_width above 0; got {cv} and {half_width}")
    return math.ceil((1.96 * cv * math.sqrt(2) / half_width) ** 2)


def _require_values(arms: Mapping[str, Sequence[float]], confidence: float) -> NDArray[np.float64]:
    """Return the values as (num_arms, num_trials) float64; see bootstrap_statistic for what is refused."""
    lengths = {name: len(values) for name, values in arms.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"every arm must have one value per round; got {lengths or 'no arm'}")
    values = np.array(list(arms.values()), dtype=np.float64)
    if not (np.isfinite(values) & (values > 0)).all():
        wrong = values[~(np.isfinite(values) & (values > 0))][0]
        raise ValueError(f"values must be finite and above 0; got {wrong}")
    num_trials, least = values.shape[1], count_needed_trials(confidence)
    if num_trials < least:
        asked = f"a {100 * confidence:g} % interval of a median"
        raise ValueError(f"{num_trials} trials are too few for {asked}; it needs at least {least}")
    return values


def _compute_medians(
    rows: Mapping[str, NDArray[np.float64]], level: NDArray[np.float64], drawn: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Return each arm's median for each row of `drawn`, (num_draws, num_trials) positions of rounds."""
    scale = _compute_row_medians(level[drawn])
    return {name: _compute_row_medians(row[drawn]) * scale for name, row in rows.items()}


def _compute_row_medians(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each row. Sorts in place: for short rows several times faster than np.median."""
    rows.sort(axis=1)
    middle = rows.shape[1] // 2
    return rows[:, middle] if rows.shape[1] % 2 else (rows[:, middle - 1] + rows[:, middle]) / 2


def _compute_tail(confidence: float, num_trials: int) -> float:
    """Return the share of draws to leave out at each end: Student's quantile, with the n/(n-1) of a variance."""
    quantile = _compute_t_quantile(0.5 + confidence / 2, num_trials - 1) * math.sqrt(num_trials / (num_trials - 1))
    return NormalDist().cdf(-quantile)


def _compute_t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t. Source: Abramowitz and Stegun 1964, 26.7.5; within 0.1 % from 5 degrees."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))
