"""How much faster: steps timed in the script's own course, cells launched in turns, an interval by relaunches."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import fmean, stdev

from ddp_audit.evidence import count_samples, do_samples_lead
from ddp_audit.launched import Audit, Launched
from ddp_audit.split import compute_step_seconds, list_other_kinds, list_timed_steps

FEWEST_LAUNCHES = 3
"""Behind an interval."""
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Of 1, 2, 3 ... degrees of freedom, two-sided, 95 %; of more the last one, which is a little too wide."""


@dataclass(frozen=True)
class Ratio:
    """A speedup with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Speed:
    """How fast a cell is."""

    cell: str
    step_seconds: float
    """Of the slowest rank of each step, the mean over all timed steps of all launches."""
    samples_per_second: float | None
    """All ranks together; None where samples are not known."""
    num_steps: int
    """Timed."""
    speedup: Ratio | None
    """Against the baseline, in samples per second; where samples are not known, in steps per second. None for the
    baseline."""
    has_interval: bool
    """Whether there were launches enough; else the interval is the number itself."""


def compute_speeds(audit: Audit) -> list[Speed]:
    """Return the speed of every cell that made steps enough; without the baseline's, none."""
    rates = {cell: _list_rates(launches) for cell, launches in audit.launches.items()}
    if not rates.get(audit.baseline):
        return []
    are_samples_known = all(rate.samples is not None for found in rates.values() for rate in found) and all(
        do_samples_lead(audit.ranks(cell), audit.ranks(audit.baseline)) for cell in rates if rates[cell]
    )
    return [_make_speed(audit, cell, rates, are_samples_known) for cell in audit.request.cells if rates[cell]]


@dataclass(frozen=True)
class _Rate:
    """Of one launch."""

    seconds: float
    steps: int
    samples: int | None


def _list_rates(launches: Sequence[Launched]) -> list[_Rate]:
    found = [_measure(launched) for launched in launches if not launched.is_failed]
    return [one for one in found if one is not None]


def _measure(launched: Launched) -> _Rate | None:
    of_ranks = [list_timed_steps(rank.steps[: launched.num_steps]) for rank in launched.ranks]
    if not of_ranks or not of_ranks[0]:
        return None
    others = list_other_kinds(launched)
    seconds = sum(max(compute_step_seconds(step, others) for step in steps) for steps in zip(*of_ranks, strict=True))
    samples = count_samples(launched.ranks)
    num_steps = len(of_ranks[0])
    return _Rate(seconds, num_steps, None if samples is None else sum(samples[-num_steps:]))


def _make_speed(audit: Audit, cell: str, rates: dict[str, list[_Rate]], are_samples_known: bool) -> Speed:
    mine, base = rates[cell], rates[audit.baseline]
    seconds, steps = sum(rate.seconds for rate in mine), sum(rate.steps for rate in mine)
    samples = sum(rate.samples or 0 for rate in mine)
    speedup, has_interval = None, False
    if cell != audit.baseline:
        speedup, has_interval = _compare(
            _list_work_rates(mine, are_samples_known), _list_work_rates(base, are_samples_known)
        )
    return Speed(
        cell=cell,
        step_seconds=seconds / steps,
        samples_per_second=samples / seconds if are_samples_known else None,
        num_steps=steps,
        speedup=speedup,
        has_interval=has_interval,
    )


def _list_work_rates(rates: list[_Rate], are_samples_known: bool) -> list[float]:
    return [((rate.samples or 0) if are_samples_known else rate.steps) / rate.seconds for rate in rates]


def _compare(mine: list[float], base: list[float]) -> tuple[Ratio, bool]:
    """Return the ratio of work per second, launch beside launch, and whether its interval says anything."""
    number = min(len(mine), len(base))
    mine, base = mine[:number], base[:number]
    value = (sum(mine) / number) / (sum(base) / number)
    if number < FEWEST_LAUNCHES:
        return Ratio(value, value, value), False
    # Launch beside launch, so that what slows both down cancels (Cochran 1977, Sampling Techniques, 6.3); on the
    # logarithmic scale, where a ratio and its inverse are as sure as each other.
    apart = [(one - value * other) / (value * fmean(base)) for one, other in zip(mine, base, strict=True)]
    half = _STUDENT[min(number - 1, len(_STUDENT)) - 1] * stdev(apart) / sqrt(number)
    return Ratio(value, value * exp(-half), value * exp(half)), True
