"""Is the gradient clipped by one norm, or on every rank by another?"""

from ddp_audit.evidence import (
    do_parameters_differ,
    each_common_step,
    holds_whole_model,
    make_unobservable,
)
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import tell_line

NAME = "Clipped by one norm"
QUESTION = "Is the gradient clipped by the same norm on every rank?"
CLASS = "wrong training"
SAYS = {
    "other_norm": "Each rank clips by a norm of its own: {on_ranks} in step {step} of {cell}",
}
REMEDY = "clip after the exchange, by the norm of the whole gradient (FSDP: its own clip_grad_norm_, or DTensors)"

_APART = 1e-3
_FEWEST_STEPS = 2


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the norms that the clipping of torch was told, or worked out, step by step."""
    ranks, problems, num_compared, num_steps = audit.ranks(cell), [], 0, 0
    early = [step["step"] for rank in ranks for step in rank.steps if step.get("is_gradient_changed_early")]
    for steps in each_common_step(ranks):
        clips = [step.get("clips", []) for step in steps]
        if len({len(one) for one in clips}) > 1:
            return make_unobservable(cell, "clips_differ_in_number", "the ranks clip a different number of times")
        num_steps += bool(clips[0])
        for of_ranks in zip(*clips, strict=True):
            num_compared += 1
            norms = [one["norm"] for one in of_ranks]
            if max(norms) - min(norms) > _APART * max(norms):
                where = tell_line(of_ranks[0].get("line"))
                problems.append(
                    explain(
                        "other_norm",
                        "{cell}: step {step} was clipped" + " at {line}" * bool(where) + " by the norm {on_ranks}",
                        cell=cell, step=steps[0]["step"], line=where, norms=norms,
                        on_ranks=[f"{norm:.4g} on rank {rank}" for rank, norm in enumerate(norms[:4])],
                    )
                )  # fmt: skip
    if early and not problems:
        return make_unobservable(
            cell,
            "changed_early",
            "in step {step} something may change the gradient before all of it is summed up over the ranks: between "
            "its micro-batches, or by a hook on a parameter or on DDP's exchange",
            step=min(early),
        )
    if not num_compared:
        return _find_untouched(audit, cell)
    if problems and holds_whole_model(ranks) and do_parameters_differ(ranks):
        return make_unobservable(cell, "models_differ", "every rank has a model of its own, and so a norm")
    return make_finding(
        problems,
        "{cell}: the norm was the same on all ranks, {compared:plural time} in {steps_compared:plural step} looked "
            "at, of {steps:,}",
            cell=cell, compared=num_compared, different=len(problems), steps_compared=num_steps,
            steps=audit.first(cell).num_steps,
    )  # fmt: skip


def _find_untouched(audit: Audit, cell: str) -> Finding:
    """Look whether the optimizer finds the gradient as the backward pass has left it: then nothing has clipped it."""
    kept = [step["is_gradient_kept"] for rank in audit.ranks(cell) for step in rank.steps if "is_gradient_kept" in step]
    known = [one for one in kept if one is not None]
    if len(known) < _FEWEST_STEPS * len(audit.ranks(cell)) or not all(known):
        return make_unobservable(
            cell,
            "no_clip_seen",
            "no clip_grad_norm_ was seen, and what changes the gradient before the optimizer's step is not known",
        )
    return make_finding(
        [],
        "{cell}: nothing clips it: in {steps:plural step} looked at, all ranks together, the optimizer found the "
            "gradient as the backward pass had left it",
            cell=cell, steps=len(known), compared=0, different=0,
    )  # fmt: skip
