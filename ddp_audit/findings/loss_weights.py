"""Does every target weigh the same in an update, wherever it is learned from?"""

from ddp_audit.evidence import each_common_step, has_no_integers, make_unobservable, weigh
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import tell_line

NAME = "Every target weighs the same"
QUESTION = "Is the loss a sum over targets divided by those of the whole update, and no mean of means?"
CLASS = "wrong training"
SAYS = {
    "means_of_means": "A mean of means: micro-batches of {least} and of {most} targets count alike in {cell}",
}
REMEDY = (
    "sum the losses of the targets and divide by their number in the whole optimizer step, over all micro-batches and "
    "ranks (and multiply by the number of ranks where DDP divides by it)"
)

_APART = 1.02
_SAME = 1e-3
_SHARE = 0.1


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the weight of a target in each micro-batch of a step, on all ranks."""
    ranks = audit.ranks(cell)
    if len(ranks) == 1 and all(len(step["micros"]) == 1 for step in ranks[0].steps):
        # An update of one loss is no mean of several.
        return None
    num_steps, wrong = 0, []
    for steps in each_common_step(ranks):
        micros = [micro for step in steps for micro in step["micros"]]
        weights = [weigh(micro) for micro in micros]
        known = [one for one in weights if one is not None]
        if len(known) < len(micros) or len(known) < 2:
            continue
        num_steps += 1
        if _find_spread([of_target for of_target, _ in known]) <= _APART:
            continue
        if _find_spread([of_mean for _, of_mean in known]) > 1 + _SAME:
            return make_unobservable(
                cell, "no_fixed_multiple", "what is back-propagated is no fixed multiple of such a loss"
            )
        counts = [micro["num_targets"] for micro in micros]
        wrong.append((steps[0]["step"], min(counts), max(counts), micros[0]))
    if not num_steps and has_no_integers(audit, cell) and _are_of_one_size(audit, cell):
        return make_finding([], "{cell}: all micro-batches of a step have as many samples", cell=cell)
    if not num_steps:
        return make_unobservable(
            cell,
            "no_such_loss",
            "no step had several micro-batches whose loss is one unweighted loss of torch.nn.functional",
        )
    problems = []
    if wrong:
        step, least, most, micro = wrong[0]
        if len(wrong) < max(2, _SHARE * num_steps):
            return make_unobservable(
                cell,
                "means_of_means_at_times",
                "in {wrong} of {steps_compared} steps looked at, first at step {step}, micro-batches count alike "
                "though their targets do not, and in the others they do not",
                wrong=len(wrong), steps_compared=num_steps, step=step,
            )  # fmt: skip
        where = tell_line(micro.get("line"))
        problems = [
            explain(
                "means_of_means",
                "{cell}: in {wrong} of {steps_compared} steps micro-batches count alike though their targets do not: "
                "at step {step} means over {least} and over {most} targets have the same weight"
                + " (model called at {line})" * bool(where),
                cell=cell, wrong=len(wrong), steps_compared=num_steps, step=step, least=least, most=most, line=where,
            )
        ]  # fmt: skip
    return make_finding(
        problems,
        "{cell}: a target weighs the same in every micro-batch of {steps_compared:plural step} looked at, of "
            "{steps:,}",
            cell=cell, steps_compared=num_steps, steps_of_means_of_means=len(wrong), steps=audit.first(cell).num_steps,
    )  # fmt: skip


def _are_of_one_size(audit: Audit, cell: str) -> bool:
    """Return whether the micro-batches of most steps are alike: a mean over each is then one over all."""
    steps = list(each_common_step(audit.ranks(cell)))
    odd = [
        of_ranks
        for of_ranks in steps
        if len({str(one.get("shape")) for step in of_ranks for one in step["micros"]}) > 1
    ]
    return len(odd) <= _SHARE * len(steps)


def _find_spread(weights: list[float]) -> float:
    return max(weights) / min(weights) if min(weights) > 0 else float("inf")
