"""Where the time of the script's steps goes, and how long a step takes without what is none of it."""

from statistics import fmean, median

from ddp_audit.launched import OTHER_WORK, Launched
from ddp_audit.rank_record import Fields

_WARM_UP_SHARE = 0.1
_FEWEST_WARM_UP = 1
_OBSERVER = "observer"
EVALUATION = "evaluation"
_MAY_BE_OF_STEPS = (EVALUATION, "network", "subprocess")
"""Kinds that the observer names until the next activity, whatever is done meanwhile; a checkpoint has an end."""
_MOST = 0.5


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
    found = [list_timed_steps(rank.steps) for one in launches for rank in one.ranks]

    return tuple(
        kind
        for kind in OTHER_WORK
        if kind not in may_be_of_steps
        or not any(sum(kind in step["seconds"] for step in steps) > _MOST * len(steps) for steps in found)
    )


def compute_step_seconds(step: Fields, others: tuple[str, ...] = OTHER_WORK) -> float:
    """Return the seconds of a rank from the end of the step before to its own, without other work and the observer."""
    return float(sum(spent for kind, spent in step["seconds"].items() if kind not in (*others, _OBSERVER)))


def split_steps(launched: Launched) -> dict[str, float]:
    """Return activity -> mean seconds per step over all ranks; other work and the observer left out."""
    steps = [step for rank in launched.ranks for step in list_timed_steps(rank.steps)]
    left_out = (*list_other_kinds(launched), _OBSERVER)
    kinds = dict.fromkeys(kind for step in steps for kind in step["seconds"] if kind not in left_out)
    return {kind: fmean(step["seconds"].get(kind, 0.0) for step in steps) for kind in kinds} if steps else {}


def split_device_steps(launched: Launched) -> dict[str, float]:
    """Return activity -> mean seconds of the GPU per step over all ranks, other work left out; empty without one."""
    found = [step for rank in launched.ranks for step in list_timed_steps(rank.steps) if step.get("device_seconds")]
    others = list_other_kinds(launched)
    kinds = dict.fromkeys(kind for step in found for kind in step["device_seconds"] if kind not in others)
    return {kind: fmean(step["device_seconds"].get(kind, 0.0) for step in found) for kind in kinds} if found else {}


def sum_other_work(launched: Launched) -> dict[str, float]:
    """Return activity that is no step's -> its seconds in the whole launch, of the rank with most of it."""
    found = {}
    for kind in (*list_other_kinds(launched), _OBSERVER):
        of_ranks = [
            sum(one["seconds"].get(kind, 0.0) for one in [*rank.steps, *rank.lines.get("end", [])])
            for rank in launched.ranks
        ]
        found[kind] = max(of_ranks, default=0.0)
    return found


def find_exposed_seconds(launched: Launched) -> float | None:
    """Return the exchange that DDP's clock saw beside no computation, seconds per backward; None where it has none."""
    found = []
    for rank in launched.ranks:
        told = [step["ddp"] for step in rank.steps if step.get("ddp")]
        if told and told[-1].get("avg_backward_comm_time"):
            last = told[-1]
            overlap = last.get("avg_backward_compute_comm_overlap_time", 0)
            found.append((last["avg_backward_comm_time"] - overlap) / 1e9)
    return median(found) if found else None
