"""Where the time of the script's steps goes, and how long a step takes without what is none of it."""

from statistics import fmean, median

from tasks.auditing.launched import OTHER_WORK, Launched
from tasks.auditing.rank_record import Fields

_WARM_UP_SHARE = 0.1
_FEWEST_WARM_UP = 1
_OBSERVER = "observer"


def list_timed_steps(steps: list[Fields]) -> list[Fields]:
    """Return the steps without the first tenth, at least one: there much is done for the first time."""
    num_left_out = max(_FEWEST_WARM_UP, round(_WARM_UP_SHARE * len(steps)))
    return steps[num_left_out:]


def compute_step_seconds(step: Fields) -> float:
    """Return the seconds of a rank from the end of the step before to its own, without other work and the observer."""
    return float(sum(spent for kind, spent in step["seconds"].items() if kind not in (*OTHER_WORK, _OBSERVER)))


def split_steps(launched: Launched) -> dict[str, float]:
    """Return activity -> mean seconds per step over all ranks; other work and the observer left out."""
    steps = [step for rank in launched.ranks for step in list_timed_steps(rank.steps)]
    kinds = dict.fromkeys(kind for step in steps for kind in step["seconds"] if kind not in (*OTHER_WORK, _OBSERVER))
    return {kind: fmean(step["seconds"].get(kind, 0.0) for step in steps) for kind in kinds} if steps else {}


def split_device_steps(launched: Launched) -> dict[str, float]:
    """Return activity -> mean seconds of the GPU per step over all ranks, other work left out; empty without one."""
    found = [step for rank in launched.ranks for step in list_timed_steps(rank.steps) if step.get("device_seconds")]
    kinds = dict.fromkeys(kind for step in found for kind in step["device_seconds"] if kind not in OTHER_WORK)
    return {kind: fmean(step["device_seconds"].get(kind, 0.0) for step in found) for kind in kinds} if found else {}


def sum_other_work(launched: Launched) -> dict[str, float]:
    """Return activity that is no step's -> its seconds in the whole launch, of the rank with most of it."""
    found = {}
    for kind in (*OTHER_WORK, _OBSERVER):
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
