"""Is a cell faster than its ranks can make it?"""

from tasks.auditing.evidence import make_unobservable
from tasks.auditing.launched import Audit
from tasks.auditing.speed import compute_speeds
from tasks.process import wording
from tasks.records.gate import Finding, make_finding

NAME = "Speedup is plausible"
QUESTION = "Is the cell no faster than its number of ranks can make it?"
REMEDY = "look for what the baseline alone does: a wait, debugging, or memory that is too small for its batch"

_MOST_EFFICIENCY = 1.1
"""As for cells of params.yaml; beyond it a smaller share of the batch may fit where the whole did not, or not."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the speedup with the number of ranks, all launches of both cells together."""
    if cell == audit.baseline:
        return None
    speedup = next((one.speedup for one in compute_speeds(audit) if one.cell == cell), None)
    if speedup is None:
        return make_unobservable(cell, "too few steps were seen")
    ranks = audit.request.cells[cell] / audit.request.cells[audit.baseline]
    # With an interval, its lower end: the number itself may be a slow hour of the baseline.
    if speedup.low > _MOST_EFFICIENCY * ranks:
        return make_unobservable(
            cell,
            f"it is more times as fast as it has times the ranks of {audit.baseline} ({speedup.low / ranks:.2f} times"
            f" that at least, up to {_MOST_EFFICIENCY:g} is believed): what else {audit.baseline} does is not known",
        )
    return make_finding(
        [],
        otherwise=f"{cell}: {wording.format_percent(speedup.value / ranks)} of what {ranks:g} times the ranks can give",
        numbers={"efficiency": speedup.value / ranks, "most_efficiency": _MOST_EFFICIENCY},
    )
