"""What stands inside the script's own clock?"""

from collections.abc import Sequence
from dataclasses import replace

from ddp_audit.evidence import make_unobservable
from ddp_audit.launched import Audit
from ddp_audit.process import wording
from ddp_audit.process.findings import Finding, make_failed_finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import Fields, RankRecord, tell_line
from ddp_audit.speed import EVALUATION, list_other_kinds

NAME = "Only training was timed"
QUESTION = "Is the script's own clock free of uploads, checkpoints and evaluation?"
CLASS = "hygiene"
SAYS = {
    "timed_no_step": "The script's own clock counts what is no training: {parts}",
}
REMEDY = "read the clock right before and right after the steps, and add up; save, upload and evaluate outside"

_COVERED = 0.5
_MOST_OTHER = 0.05


def find(audit: Audit, cell: str) -> Finding | None:
    """Look at the tightest of the spans that the script can have timed its steps with."""
    found = [(rank, window) for rank in audit.ranks(cell) if (window := find_tightest_window(rank)) is not None]
    if not found:
        return make_unobservable(
            cell, "no_clock_read", "the script was not seen to read a clock before and after its steps"
        )
    others = _list_other_kinds(audit, cell)
    rank, window = max(found, key=lambda pair: compute_other_share(pair[1], others))
    share, known = compute_other_share(window, others), window["seconds"]
    numbers = {
        "cell": cell, "rank": rank.rank, "begin": tell_line(window["begin"]), "end": tell_line(window["end"]),
        "seconds": sum(known.values()), "other_seconds": _sum_other(window, others), "share": share,
        # Spans that begin before the one before has ended have steps in common.
        "timed_steps": min(window["num_steps"], len(rank.steps)), "steps": len(rank.steps),
        "parts": [f"{kind} {wording.format_duration(known[kind])}" for kind in others if known.get(kind)],
    }  # fmt: skip
    if share > _MOST_OTHER:
        problem = explain(
            "timed_no_step",
            "{cell}: of {seconds:duration} between the clock readings at {begin} to {end} on rank {rank}, "
            "{other_seconds:duration} were no step: {parts}",
            **numbers,
        )
        return replace(make_failed_finding(problem), true_figure=_correct(audit, cell))
    return make_finding(
        [],
        "{cell}: {share:small_percent} of the time between the clock's readings at {begin} to {end} was something "
        "else than training, over {timed_steps:,} of {steps:,} steps",
        **numbers,
    )


def find_tightest_window(rank: RankRecord) -> Fields | None:
    """Return the span over most of the steps that is shortest per step; None where there is none.

    A variable that still holds an older reading makes a longer one, which nobody may have meant.
    """
    covering = [window for window in rank.windows if window["num_steps"] >= _COVERED * len(rank.steps)]
    return min(covering, key=lambda window: sum(window["seconds"].values()) / window["num_steps"], default=None)


def _list_other_kinds(audit: Audit, cell: str) -> tuple[str, ...]:
    """Return the kinds of what is no training: an upload is none in whatever step it is."""
    return list_other_kinds(audit.first(cell), may_be_of_steps=(EVALUATION,))


def compute_other_share(window: Fields, others: Sequence[str]) -> float:
    """Return the share of a span in which no step ran; `others`: kinds of what is no step."""
    seconds = sum(window["seconds"].values())
    return _sum_other(window, others) / seconds if seconds else 0.0


def _sum_other(window: Fields, others: Sequence[str]) -> float:
    return float(sum(window["seconds"].get(kind, 0.0) for kind in others))


def _correct(audit: Audit, cell: str) -> str:
    """Return what the script's clock says of the speedup, and what it says without what is no step."""
    spans = []
    for name in (audit.baseline, cell):
        windows = [window for rank in audit.ranks(name) if (window := find_tightest_window(rank)) is not None]
        if not windows:
            return ""
        longest = max(windows, key=lambda window: sum(window["seconds"].values()))
        others = _list_other_kinds(audit, name)
        spans.append((sum(longest["seconds"].values()), _sum_other(longest, others)))
    (base, base_other), (mine, other) = spans
    if cell == audit.baseline:
        return f"without that its clock says {wording.format_duration(mine - other)}"
    return (
        f"by the script's clock {cell} is {wording.format_ratio(base / mine)} as fast as {audit.baseline}, without "
        f"that {wording.format_ratio((base - base_other) / (mine - other))}"
    )
