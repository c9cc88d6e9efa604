"""Is the loss given labels, or the attention mask in their place?"""

from ddp_audit.evidence import make_unobservable
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import tell_line

NAME = "Labels are not the attention mask"
QUESTION = "Is what the loss is compared with something else than the attention mask of the inputs?"
CLASS = "wrong training"
SAYS = {
    "mask_as_labels": "The model learns the attention mask: that is what {cell}'s loss is given for labels",
}
REMEDY = "hand the labels over by name: an engine that takes the second tensor of a batch took the mask"


def find(audit: Audit, cell: str) -> Finding | None:
    """Look for targets that are the mask, element by element."""
    looked, wrong = 0, []
    for rank in audit.ranks(cell):
        for step, micro in rank.micros():
            if not micro.get("has_mask") or not (micro.get("num_losses") or micro.get("labels_are_mask")):
                continue
            looked += 1
            if micro.get("labels_are_mask"):
                wrong.append((rank.rank, step, micro))
    if not looked:
        # Without a mask among the inputs it cannot have been taken for labels.
        return None
    problems = []
    if wrong:
        rank_number, step, micro = wrong[0]
        where = tell_line(micro.get("line"))
        if len(wrong) < looked:
            return make_unobservable(
                cell,
                "mask_at_times",
                "in {wrong} of {micro_batches} micro-batches looked at, first on rank {rank} at step {step}, the "
                "targets are the attention mask, and in the others they are not",
                wrong=len(wrong), micro_batches=looked, rank=rank_number, step=step,
            )  # fmt: skip
        problems = [
            explain(
                "mask_as_labels",
                "{cell}: in all {micro_batches:plural micro-batch} looked at the targets of the loss are the attention "
                "mask (rank {rank}, step {step}" + ", model called at {line}" * bool(where) + ")",
                cell=cell, micro_batches=looked, rank=rank_number, step=step, line=where,
            )
        ]  # fmt: skip
    return make_finding(
        problems,
        "{cell}: the targets differ from the attention mask in all {micro_batches} micro-batches looked at, of "
            "{all:,}",
            cell=cell, micro_batches=looked, with_the_mask_as_labels=len(wrong),
            all=sum(len(step["micros"]) for rank in audit.ranks(cell) for step in rank.steps),
    )  # fmt: skip
