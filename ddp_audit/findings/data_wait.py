"""Do the ranks compute, or wait for data?"""

from dataclasses import replace

from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.speed import split_steps

NAME = "Not data-bound"
QUESTION = "Did the ranks compute, rather than wait for their loader?"
CLASS = "hygiene"
SAYS = {
    "data_bound": "{cell} waits for data {data_wait_share:small_percent} of its time",
}
REMEDY = "more workers (num_workers), texts tokenised beforehand, pinned memory; or fewer transformations per row"

DATA_BOUND_SHARE = 0.05


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the time in the loader with that of whole steps."""
    split = split_steps(audit.first(cell))
    seconds, waited = sum(split.values()), split.get("data", 0.0)
    share = waited / seconds if seconds else 0.0
    told = explain(
        "data_bound",
        "{cell}: {data_wait_share:small_percent} of a step of {seconds:duration} was spent waiting for the loader",
        cell=cell, data_wait_share=share, seconds=seconds, most_allowed=DATA_BOUND_SHARE,
    )  # fmt: skip
    return make_finding(
        [told.extend("{sentence}, at most {most_allowed:percent} allowed")] * (share > DATA_BOUND_SHARE),
        replace(told, code="passed"),
    )
