"""How much faster: steps timed in the script's own course, cells launched in turns, an interval by relaunches."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import fmean, median, stdev

from ddp_audit.findings import count_samples, do_samples_lead
from ddp_audit.records import OTHER_WORK, Audit, Fields, Launched

_WARM_UP_SHARE = 0.1
_FEWEST_WARM_UP = 1
_OBSERVER = "observer"
EVALUATION = "evaluation"
_MAY_BE_OF_STEPS = (EVALUATION, "network", "subprocess")
"""Kinds that the observer names until the next activity, whatever is done meanwhile; a checkpoint has an end."""
_MOST = 0.5


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
    are_samples_known = all(rate.samples is not None for result in rates.values() for rate in result) and all(
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
    results = [_measure(launched) for launched in launches if not launched.is_failed]
    return [result for result in results if result is not None]


def _measure(launched: Launched) -> _Rate | None:
    of_ranks = [list_timed_steps(rank.steps[: launched.num_steps]) for rank in launched.ranks]
    if not of_ranks or not of_ranks[0]:
        return None
    others = list_other_kinds(launched)
    seconds = sum(
        max(
            float(sum(spent for kind, spent in step["seconds"].items() if kind not in (*others, _OBSERVER)))
            for step in steps
        )
        for steps in zip(*of_ranks, strict=True)
    )
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
    apart = [(item - value * other) / (value * fmean(base)) for item, other in zip(mine, base, strict=True)]
    half = _STUDENT[min(number - 1, len(_STUDENT)) - 1] * stdev(apart) / sqrt(number)
    return Ratio(value, value * exp(-half), value * exp(half)), True


def list_timed_steps(steps: list[Fields]) -> list[Fields]:
    """Return the steps without the first tenth, at least one: there much is done for the first time."""
    num_left_out = max(_FEWEST_WARM_UP, round(_WARM_UP_SHARE * len(steps)))
    return steps[num_left_out:]


def list_other_kinds(launched: Launched, may_be_of_steps: tuple[str, ...] = _MAY_BE_OF_STEPS) -> tuple[str, ...]:
    """Return the kinds of other work that are no part of a step.

    What most steps of a rank have is a part of them: a teacher's answers, what is learned from next, or what the script
    does after it has told a server or a program something. Where it is one in any launch of the audit it is one in
    all: else the same evaluation would be counted where epochs are short, and left out where they are long.
    """
    launches = launched.beside or [launched]
    results = [list_timed_steps(rank.steps) for launch in launches for rank in launch.ranks]

    return tuple(
        kind
        for kind in OTHER_WORK
        if kind not in may_be_of_steps
        or not any(sum(kind in step["seconds"] for step in steps) > _MOST * len(steps) for steps in results)
    )


def split_steps(launched: Launched) -> dict[str, float]:
    """Return activity -> mean seconds per step over all ranks; other work and the observer left out."""
    steps = [step for rank in launched.ranks for step in list_timed_steps(rank.steps)]
    left_out = (*list_other_kinds(launched), _OBSERVER)
    kinds = dict.fromkeys(kind for step in steps for kind in step["seconds"] if kind not in left_out)
    return {kind: fmean(step["seconds"].get(kind, 0.0) for step in steps) for kind in kinds} if steps else {}


def split_device_steps(launched: Launched) -> dict[str, float]:
    """Return activity -> mean seconds of the GPU per step over all ranks, other work left out; empty without one."""
    results = [step for rank in launched.ranks for step in list_timed_steps(rank.steps) if step.get("device_seconds")]
    others = list_other_kinds(launched)
    kinds = dict.fromkeys(kind for step in results for kind in step["device_seconds"] if kind not in others)
    return {kind: fmean(step["device_seconds"].get(kind, 0.0) for step in results) for kind in kinds} if results else {}


def sum_other_work(launched: Launched) -> dict[str, float]:
    """Return activity that is no step's -> its seconds in the whole launch, of the rank with most of it."""
    results = {}
    for kind in (*list_other_kinds(launched), _OBSERVER):
        of_ranks = [
            sum(step["seconds"].get(kind, 0.0) for step in [*rank.steps, *rank.lines.get("end", [])])
            for rank in launched.ranks
        ]
        results[kind] = max(of_ranks, default=0.0)
    return results


def find_exposed_seconds(launched: Launched) -> float | None:
    """Return the exchange that DDP's clock saw beside no computation, seconds per backward; None where it has none."""
    results = []
    for rank in launched.ranks:
        texts = [step["ddp"] for step in rank.steps if step.get("ddp")]
        if texts and texts[-1].get("avg_backward_comm_time"):
            last = texts[-1]
            overlap = last.get("avg_backward_compute_comm_overlap_time", 0)
            results.append((last["avg_backward_comm_time"] - overlap) / 1e9)
    return median(results) if results else None
