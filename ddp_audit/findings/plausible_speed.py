"""Is a cell faster than its ranks can make it?"""

from ddp_audit.evidence import make_unobservable
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.speed import compute_speeds

NAME = "Speedup is plausible"
QUESTION = "Is the cell no faster than its number of ranks can make it?"
CLASS = "unlike cells"
SAYS: dict[str, str] = {}
REMEDY = "look for what the baseline alone does: a wait, debugging, or memory that is too small for its batch"

_MOST_EFFICIENCY = 1.1
"""As for cells of params.yaml; beyond it a smaller share of the batch may fit where the whole did not, or not."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the speedup with the number of ranks, all launches of both cells together."""
    if cell == audit.baseline:
        return None
    speedup = next((one.speedup for one in compute_speeds(audit) if one.cell == cell), None)
    if speedup is None:
        return make_unobservable(cell, "too_few_steps", "too few steps were seen")
    ranks = audit.request.cells[cell] / audit.request.cells[audit.baseline]
    # With an interval, its lower end: the number itself may be a slow hour of the baseline.
    if speedup.low > _MOST_EFFICIENCY * ranks:
        return make_unobservable(
            cell,
            "beyond_linear",
            "it is more times as fast as it has times the ranks of {baseline} ({efficiency:.2f} times that at least, "
            "up to {most_efficiency:g} is believed): what else {baseline} does is not known",
            baseline=audit.baseline, efficiency=speedup.low / ranks, most_efficiency=_MOST_EFFICIENCY,
        )  # fmt: skip
    return make_finding(
        [],
        "{cell}: {efficiency:percent} of what {ranks:g} times the ranks can give",
            cell=cell, efficiency=speedup.value / ranks, ranks=ranks, most_efficiency=_MOST_EFFICIENCY,
    )  # fmt: skip
