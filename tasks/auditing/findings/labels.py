"""Is the loss given labels, or the attention mask in their place?"""

from tasks.auditing.evidence import find_nothing_seen, make_unobservable
from tasks.auditing.launched import Audit
from tasks.auditing.rank_record import tell_line
from tasks.process import wording
from tasks.records.gate import Finding, make_finding

NAME = "Labels are not the attention mask"
QUESTION = "Is what the loss is compared with something else than the attention mask of the inputs?"
REMEDY = "hand the labels over by name: an engine that takes the second tensor of a batch took the mask"


def find(audit: Audit, cell: str) -> Finding | None:
    """Look for targets that are the mask, element by element."""
    if nothing := find_nothing_seen(audit, cell):
        return nothing
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
                f"in {len(wrong)} of {looked} micro-batches looked at, first on rank {rank_number} at step {step}, the "
                "targets are the attention mask, and in the others they are not",
            )
        problems = [
            f"{cell}: in all {wording.format_plural(looked, 'micro-batch')} looked at the targets of the loss are the "
            f"attention mask (rank {rank_number}, step {step}{f', model called at {where}' * bool(where)})"
        ]
    return make_finding(
        problems,
        otherwise=f"{cell}: the targets differ from the attention mask in all {looked} micro-batches looked at, of "
        f"{sum(len(step['micros']) for rank in audit.ranks(cell) for step in rank.steps):,}",
        numbers={"micro_batches": looked, "with_the_mask_as_labels": len(wrong)},
    )
