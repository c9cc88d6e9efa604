"""Did the clock run for the optimizer steps, and for nothing else?"""

import numpy as np
from numpy.typing import NDArray

from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import Reason, explain
from tasks.process import wording
from tasks.records.outputs import Outputs, RunOutputs, Steps

_OTHER_SHARE = 0.05
_LOOP_SECONDS = 0.02
"""What a trainer's own loop may take around a step before it counts: it is often put aside there on a busy machine.

Over 50 comparisons without a defect, of steps of 6 to 190 ms on two cores that two other processes kept busy, what
was beyond that made up 2.2 % of a cell's step time at most; on idle cores (3 comparisons) nothing was beyond.
"""
_SUM_SHARE = 0.05
_SKEW_SECONDS = 0.01
"""By how much per step ranks may be apart (steps are timed by the slowest one, the span by the first), or put aside.

Over the same comparisons 6.6 ms at most. One rank never counted a moment twice: there, more than the span is a mistake.
"""
_ACCOUNTED = {
    "train_seconds": "steps", "checkpoint_seconds": "checkpoints", "log_seconds": "log points",
    "heldout_seconds": "held-out rows", "check_seconds": "checks of updates",
}  # fmt: skip
"""What a segment's seconds by the wall clock have to add up from."""
_SLOW_MULTIPLE = 10.0
_SLOW_SHARE = 0.1
"""A step is out of place that takes so many times the median; all of them may add so large a share to the seconds.

Over the same comparisons the slowest step took 5.2 times the median at most; shares mean little in runs that short.
"""


def check_clock(outputs: Outputs, cell: str) -> Finding:
    """Check the clock of the steps against a clock that never stopped, and look for steps that took far too long."""
    run = outputs.runs[cell]
    problems = (_find_idle_problem(cell, run) or _find_slow_step(cell, run.steps), _find_sum_problem(cell, run))
    seconds, idle = run.add_up("train_seconds"), run.add_up("other_seconds")
    return make_finding(
        [problem for problem in problems if problem],
        "{cell}: in {share_without_a_step:small_percent} of the step time no step ran, the slowest took "
        "{slowest_step_in_medians:.1f} times the median; steps, log points and checkpoints add up to the wall "
        "clock's seconds",
        cell=cell,
        share_without_a_step=abs(idle) / seconds,
        train_seconds=seconds,
        seconds_without_a_step=idle,
        timed_and_not_timed_seconds=_sum_accounted_seconds(run),
        wall_clock_seconds=run.add_up("span_seconds"),
        slowest_step_in_medians=float(_compute_multiples(run.steps).max()),
        most_share_without_a_step=_OTHER_SHARE,
        most_medians=_SLOW_MULTIPLE,
    )


def _find_idle_problem(cell: str, run: RunOutputs) -> Reason | None:
    """Return what is wrong if the clock also ran while no step did, or stood still while one did."""
    steps, others = run.steps, run.steps.other_seconds
    allowed = _OTHER_SHARE * run.add_up("train_seconds")
    too_long = np.maximum(others - _LOOP_SECONDS, 0.0)
    if too_long.sum() > allowed:
        at = int(np.argmax(others))
        return explain(
            "timed_without_a_step",
            "{cell}: the clock ran for {seconds_without_a_step:seconds} of {train_seconds:seconds} while no step did, "
            "most at step {step} with {seconds:seconds}: something else, such as a checkpoint, an upload or a wait, "
            "was timed",
            cell=cell, seconds_without_a_step=run.add_up("other_seconds"),
            train_seconds=run.add_up("train_seconds"), step=steps.step[at], seconds=others[at],
        )  # fmt: skip
    if -np.minimum(others, 0.0).sum() > allowed:
        at = int(np.argmin(others))
        return explain(
            "clock_stood_still",
            "{cell}: the clock stood still for {seconds_untimed:seconds} while steps ran, most at step {step} with "
            "{seconds:seconds}",
            cell=cell, seconds_untimed=-np.minimum(others, 0.0).sum(), step=steps.step[at], seconds=-others[at],
        )  # fmt: skip
    return None


def _find_sum_problem(cell: str, run: RunOutputs) -> Reason | None:
    """Return what is wrong if seconds were counted twice, or not at all."""
    accounted, span = _sum_accounted_seconds(run), run.add_up("span_seconds")
    is_exact = run.facts.world_size == 1 and accounted > span
    skew = 0.0 if is_exact else _SKEW_SECONDS * run.add_up("num_steps")
    if abs(accounted - span) <= _SUM_SHARE * run.add_up("train_seconds") + skew:
        return None
    parts = [
        f"{what} {wording.format_seconds(run.add_up(name))}"
        for name, what in _ACCOUNTED.items()
        if name not in ("heldout_seconds", "check_seconds") or run.add_up(name)
    ]
    code, meaning = "not_timed", "part of the training was not timed at all"
    if accounted > span:
        code, meaning = "timed_twice", "the clock of the steps ran while something else was timed too"
    return explain(
        code,
        "{cell}: {parts} add up to {accounted:seconds}, yet the wall clock passed {span:seconds}: " + meaning,
        cell=cell, parts=", ".join(parts), accounted=accounted, span=span,
    )  # fmt: skip


def _find_slow_step(cell: str, steps: Steps) -> Reason | None:
    """Return what is wrong if steps took far longer than the others, and longer per position too."""
    median = float(np.median(steps.seconds))
    is_slow = _compute_multiples(steps) > _SLOW_MULTIPLE
    if (steps.seconds - median)[is_slow].sum() <= _SLOW_SHARE * steps.seconds.sum():
        return None
    at = int(np.argmax(np.where(is_slow, steps.seconds, 0.0)))
    return explain(
        "slow_step",
        "{cell}: step {step} took {seconds:seconds} among steps of {median:seconds} ({slow_steps:plural step} of over "
        "{multiple:g} times the median): something else ran while the clock did. " + wording.TRAIN_AGAIN,
        cell=cell, step=steps.step[at], seconds=steps.seconds[at], median=median, slow_steps=int(is_slow.sum()),
        multiple=_SLOW_MULTIPLE,
    )  # fmt: skip


def _compute_multiples(steps: Steps) -> NDArray[np.float64]:
    """Return how many times the median each step took, absolutely or per position, whichever is less."""
    per_position = steps.seconds / np.maximum(steps.num_positions, 1)
    return np.minimum(steps.seconds / np.median(steps.seconds), per_position / np.median(per_position))


def _sum_accounted_seconds(run: RunOutputs) -> float:
    return sum(map(run.add_up, _ACCOUNTED))
