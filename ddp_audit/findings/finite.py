"""Are there numbers to learn from? A training whose loss is none is fast for nothing."""

from math import isfinite

from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import Fields

NAME = "Numbers stay finite"
QUESTION = "Are losses and parameters numbers, and not NaN or infinite?"
CLASS = "wrong training"
SAYS = {
    "losses_not_finite": "The loss is no number from step {step} of {cell} on",
    "parameters_not_finite": "Parameters are no numbers from step {step} of {cell} on",
}
REMEDY = "a lower learning rate, clipping, another precision; stop where a loss is no number"

_MOST = 0.5
"""Of the losses that were read: a few are what scaling in 16 bit tries out, and skips."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Look at the losses as they were back-propagated, and at sampled parameters."""
    problems, num_losses = [], 0
    for rank in audit.ranks(cell):
        losses = [(step, micro["loss"]) for step, micro in rank.micros() if micro.get("loss") is not None]
        wrong = [step for step, loss in losses if not isfinite(loss)]
        num_losses += len(losses)
        if len(wrong) > _MOST * len(losses):
            problems.append(
                explain(
                    "losses_not_finite",
                    "{cell}: {wrong} of the {losses} losses that were read on rank {rank} are no numbers, first in "
                    "step {step}",
                    cell=cell, wrong=len(wrong), losses=len(losses), rank=rank.rank, step=wrong[0],
                )
            )  # fmt: skip
        lost = [step["step"] for step in rank.steps if not _are_numbers(step.get("weights"))]
        if lost and _are_numbers(rank.steps[0].get("start")):
            problems.append(
                explain(
                    "parameters_not_finite", "{cell}: on rank {rank} parameters are no numbers from step {step} on",
                    cell=cell, rank=rank.rank, step=lost[0],
                )
            )  # fmt: skip
    return make_finding(
        problems[:1],
        "{cell}: most of the {losses_read:,} losses that were read are numbers, and so are the parameters",
            cell=cell, losses_read=num_losses,
    )  # fmt: skip


def _are_numbers(digest: Fields | None) -> bool:
    return digest is None or isfinite(digest.get("l2", 0.0))
