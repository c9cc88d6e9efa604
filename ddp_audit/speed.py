"""How much faster: steps timed in the script's own course, cells launched in turns, an interval by relaunches."""

from dataclasses import dataclass
from math import exp, sqrt
from statistics import fmean, stdev

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
    # Seconds, steps and samples of each launch.
    measured = {
        cell: [rate for launched in launches if not launched.is_failed and (rate := _measure(launched))]
        for cell, launches in audit.launches.items()
    }
    base = measured.get(audit.baseline)
    if not base:
        return []
    are_samples_known = all(samples is not None for result in measured.values() for *_, samples in result) and all(
        do_samples_lead(audit.ranks(cell), audit.ranks(audit.baseline)) for cell in measured if measured[cell]
    )
    results = []
    for cell in filter(measured.get, audit.request.cells):
        seconds, steps, samples = (sum(item or 0 for item in items) for items in zip(*measured[cell], strict=True))
        speedup, has_interval = None, False
        if cell != audit.baseline:
            rates = [
                [((are_samples_known and item[2]) or item[1]) / item[0] for item in it] for it in (measured[cell], base)
            ]
            speedup, has_interval = _compare(*rates)
        known = samples / seconds if are_samples_known else None
        results.append(Speed(cell, seconds / steps, known, int(steps), speedup, has_interval))
    return results


def _measure(launched: Launched) -> tuple[float, int, int | None] | None:
    """Return the seconds, the number and the samples of a launch's timed steps."""
    of_ranks = [list_timed_steps(rank.steps[: launched.num_steps]) for rank in launched.ranks]
    if not of_ranks or not of_ranks[0]:
        return None
    others = (*list_other_kinds(launched), _OBSERVER)
    seconds = sum(
        max(sum(spent for kind, spent in step["seconds"].items() if kind not in others) for step in steps)
        for steps in zip(*of_ranks, strict=True)
    )
    samples, num_steps = count_samples(launched.ranks), len(of_ranks[0])
    return float(seconds), num_steps, None if samples is None else sum(samples[-num_steps:])


def _compare(mine: list[float], base: list[float]) -> tuple[Ratio, bool]:
    """Return the ratio of work per second, launch beside launch, and whether its interval says anything."""
    number = min(len(mine), len(base))
    value = sum(mine[:number]) / sum(base[:number])
    if number < FEWEST_LAUNCHES:
        return Ratio(value, value, value), False
    # Launch beside launch, so that what slows both down cancels (Cochran 1977, Sampling Techniques, 6.3); on the
    # logarithmic scale, where a ratio and its inverse are as sure as each other.
    usual = value * fmean(base[:number])
    apart = [(item - value * other) / usual for item, other in zip(mine, base, strict=False)]
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
        kind for kind in OTHER_WORK
        if kind not in may_be_of_steps
        or not any(sum(kind in step["seconds"] for step in steps) > _MOST * len(steps) for steps in results)
    )  # fmt: skip


def split_steps(launched: Launched) -> dict[str, float]:
    """Return activity -> mean seconds per step over all ranks; other work and the observer left out.

    They are the host's: a GPU works on while the host goes on, and what waits for it last is charged for it.
    """
    every = [step["seconds"] for rank in launched.ranks for step in list_timed_steps(rank.steps)]
    left_out = (*list_other_kinds(launched), _OBSERVER)
    kinds = dict.fromkeys(kind for seconds in every for kind in seconds if kind not in left_out)
    return {kind: fmean(seconds.get(kind, 0.0) for seconds in every) for kind in kinds}


def sum_other_work(launched: Launched) -> dict[str, float]:
    """Return activity that is no step's -> its seconds in the whole launch, of the rank with most of it."""
    every = [[*rank.steps, *rank.lines.get("end", [])] for rank in launched.ranks]
    return {
        kind: max((sum(step["seconds"].get(kind, 0.0) for step in steps) for steps in every), default=0.0)
        for kind in (*list_other_kinds(launched), _OBSERVER)
    }
