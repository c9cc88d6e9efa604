"""Does the training learn anything: is there a gradient, and do the parameters change?"""

from ddp_audit.evidence import make_unobservable, sampled_digests
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import RankRecord, tell_line

NAME = "Something is learned"
QUESTION = "Does the optimizer find a gradient, and do the parameters change?"
CLASS = "wrong training"
NO_GRADIENT = "no_gradient"
SAYS = {
    "no_gradient": "Nothing is learned: the gradient is zero in all {sampled_steps:plural step} looked at of {cell}",
    "gradient_missing": "Nothing is learned: the parameters of {cell}'s optimizer get no gradient",
    "nothing_changed": "Nothing is learned: no parameter of {cell} changes in {sampled_steps:plural step} looked at",
}
REMEDY = (
    "look at the loss (cross-entropy over one logit is constant), at what the optimizer was given (the parameters of "
    "the model that is called), at its learning rate, and at parameters kept in 16 bits, which small updates leave as "
    "they are"
)
_FEWEST_STEPS = 2


def find(audit: Audit, cell: str) -> Finding | None:
    """Look at the gradient that the optimizer finds, and at the parameters before and after, in sampled steps."""
    ranks = audit.ranks(cell)
    gradients = [step["gradient"] for rank in ranks for step in rank.steps if step.get("gradient")]
    num_steps = min(len(sampled_digests(rank)) for rank in ranks)
    if not gradients or num_steps < _FEWEST_STEPS:
        return make_unobservable(cell, "no_step_sampled", "too few steps were sampled to see what changes")
    numbers = {"cell": cell, "sampled_steps": num_steps, "line": tell_line(ranks[0].steps[0].get("step_line"))}
    where = " (the optimizer's step is at {line})" * bool(numbers["line"])
    problems = []
    if not any(one.get("digests") for one in gradients):
        problems = [
            explain(
                "gradient_missing",
                "{cell}: in {sampled_steps:plural step} looked at no parameter of the optimizer has a gradient" + where,
                **numbers,
            )
        ]
    elif all(one.get("is_zero") for one in gradients):
        problems = [
            explain(
                NO_GRADIENT,
                "{cell}: in {sampled_steps:plural step} looked at the gradient is zero, every element of it" + where,
                **numbers,
            )
        ]
    elif all(
        never_changed(rank) and any((step.get("gradient") or {}).get("l2", 0.0) > 0 for step in rank.steps)
        for rank in ranks
    ):
        problems = [
            explain(
                "nothing_changed",
                "{cell}: in {sampled_steps:plural step} looked at the optimizer finds a gradient, and leaves all "
                "parameters as they were" + where,
                **numbers,
            )
        ]
    elif all(never_changed(rank) for rank in ranks):
        return make_unobservable(
            cell, "few_elements", "no parameter was seen to change, of which a few elements alone were looked at"
        )
    return make_finding(
        problems,
        "{cell}: in {sampled_steps:plural step} looked at there is a gradient, and parameters change",
        **numbers,
    )


def never_changed(rank: RankRecord) -> bool:
    """Return whether every sampled step left the parameters what they were when they were seen first."""
    seen = (rank.steps[0].get("start") or {}).get("digests")
    if seen is None:
        return False
    for one in sampled_digests(rank).values():
        if one[: len(seen)] != seen:
            return False
        # Those of an optimizer whose first step came later.
        seen = one
    return True
