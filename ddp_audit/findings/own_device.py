"""Has every rank a device of its own?"""

import os

from ddp_audit.launched import Audit
from ddp_audit.process import wording
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain

NAME = "A device of its own for every rank"
QUESTION = "Are there as many GPUs, or CPU cores, as the ranks use?"
CLASS = "hygiene"
SAYS = {
    "too_few_devices": "{cell} has fewer devices than it uses: {devices}, {there} there",
}
REMEDY = "ask for no more ranks than there are devices"


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare what is there with what the ranks use."""
    ranks = audit.ranks(cell)
    first = ranks[0].steps[0]
    if first.get("device") == "cuda":
        there, needed, what = int((ranks[0].first("torch") or {}).get("device_count", 0)), len(ranks), "GPU"
    else:
        there, needed, what = len(os.sched_getaffinity(0)), len(ranks) * int(first.get("num_threads", 1)), "CPU core"
    told = explain(
        "too_few_devices" if needed > there else "passed",
        "{cell}: {ranks:plural rank} use {devices}, {there} there",
        cell=cell, ranks=len(ranks), needed=needed, there=there, devices=wording.format_plural(needed, what),
    )  # fmt: skip
    return make_finding([told] * (needed > there), told)
