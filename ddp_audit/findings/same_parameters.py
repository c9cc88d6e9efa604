"""Do the ranks train one model, or each its own?"""

from dataclasses import replace

from ddp_audit.evidence import holds_whole_model, make_unobservable, sampled_digests
from ddp_audit.findings.learning import never_changed
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_failed_finding, make_finding
from ddp_audit.process.wording import Reason, explain
from ddp_audit.rank_record import Fields, RankRecord, tell_line

NAME = "Same parameters on all ranks"
QUESTION = "Do all ranks hold the same parameters after a step?"
CLASS = "wrong training"
NO_GROUP, UNWRAPPED, SAME_WORK = "no_group", "unwrapped", "same_work"
SAYS = {
    NO_GROUP: "The ranks train apart: {cell} makes no process group, so that nothing is exchanged{mode}",
    UNWRAPPED: "The ranks train apart: {line} calls a model that nothing wraps",
    "ranks_differ": "The ranks train apart: {differing} of {tensors} tensors differ between them from step {step} on",
    SAME_WORK: "The ranks do the same work: nothing is exchanged, and their losses are equal, step by step",
}
REMEDY = "call the wrapped model (ddp_model(batch), not the module inside), and give its parameters to the optimizer"

_FEW = 0.5
_WHOLE = 0.4
"""Of the parameters' bytes: models may be averaged in 16 bits."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare digests of the parameters after the sampled steps."""
    ranks = audit.ranks(cell)
    if not holds_whole_model(ranks):
        return make_unobservable(cell, "model_in_parts", "each rank holds a part of the model")
    of_ranks = [sampled_digests(rank) for rank in ranks]
    steps = sorted(set(of_ranks[0]).intersection(*of_ranks[1:]))
    if not steps or not of_ranks[0][steps[0]]:
        return make_unobservable(cell, "no_step_sampled", "no step was sampled on every rank")
    if any(len({len(one[step]) for one in of_ranks}) > 1 for step in steps):
        return make_unobservable(
            cell, "other_parameters", "the ranks train other parameters than each other, as stages of a pipeline do"
        )
    differing = {step: _count_differing([one[step] for one in of_ranks]) for step in steps}
    num_tensors = max(len(of_ranks[0][step]) for step in steps)
    wrong = [step for step in steps if differing[step]]
    if wrong and len(wrong) < len(steps):
        return make_unobservable(
            cell,
            "averaged_at_times",
            "the ranks differ after step {step} and not after every one, as where models are averaged at times",
            step=wrong[0],
        )
    if wrong and _are_averaged(ranks[0]):
        return make_unobservable(cell, "models_exchanged", "the ranks differ, and exchange whole models in some steps")
    if wrong and max(differing.values()) <= _FEW * num_tensors:
        return make_unobservable(
            cell,
            "some_tensors_differ",
            "{differing} of {tensors} tensors differ, as where ranks hold experts of their own",
            differing=max(differing.values()), tensors=num_tensors,
        )  # fmt: skip
    if not wrong and (doubt := _doubt_equal(audit, cell, steps)) is not None:
        return doubt
    found = make_finding(
        [_describe(cell, ranks, wrong, num_tensors, differing)] if wrong else [],
        "{cell}: equal on all ranks after each of {sampled_steps:plural sampled step} of {steps:,}, the last of "
            "them step {last:,}",
            cell=cell, sampled_steps=len(steps), steps=audit.first(cell).num_steps, last=steps[-1],
            tensors=num_tensors, differing_tensors=max(differing.values()),
    )  # fmt: skip
    figure = (
        f"{cell} is {len(ranks)} trainings side by side, each of its own share of the rows: there is no speedup of one "
        "training"
    )
    if not wrong:
        return found
    return replace(found, true_figure=figure, remedy=_find_remedy(ranks))


def _doubt_equal(audit: Audit, cell: str, steps: list[int]) -> Finding | None:
    """Return what is found of ranks whose parameters are equal in these steps where that is no proof of an exchange."""
    ranks = audit.ranks(cell)
    if all(never_changed(rank) for rank in ranks):
        return make_unobservable(
            cell,
            "unchanged",
            "no parameter was seen to change in any of {steps:plural sampled step}, so that equal ones say nothing",
            steps=len(steps),
        )
    if not _count_exchanges(ranks[0]) and _are_losses_equal(ranks):
        return replace(
            make_failed_finding(
                explain(
                    SAME_WORK,
                    "{cell}: {ranks:plural rank} exchange nothing, and have the same parameters and the same losses: "
                    "each does all the work by itself{mode}",
                    cell=cell,
                    ranks=len(ranks),
                    mode=_tell_mode(ranks[0]),
                )
            ),
            remedy=_find_remedy(ranks),
        )
    if not _count_exchanges(ranks[0]):
        return make_unobservable(
            cell,
            "nothing_exchanged",
            "no step exchanged anything: either the ranks do the same work, or exchange by means of their own, or what "
            "was read of their parameters is not what they are",
        )
    if (silent := _find_silent(ranks, steps[-1])) is not None:
        return make_unobservable(
            cell,
            "silent_later",
            "the parameters are equal up to step {last:,}, the last one that was sampled; step {silent:,} exchanges "
            "less than any until then",
            last=steps[-1], silent=silent,
        )  # fmt: skip
    return None


def _are_losses_equal(ranks: list[RankRecord]) -> bool:
    """Return whether all ranks have the same losses, wherever they were read."""
    losses = [[micro.get("loss") for _, micro in rank.micros()] for rank in ranks]
    return any(one is not None for one in losses[0]) and all(one == losses[0] for one in losses[1:])


def _has_group(rank: RankRecord) -> bool:
    return bool(rank.steps[0].get("backend"))


def _tell_mode(rank: RankRecord) -> str:
    mode = rank.steps[0].get("accelerate")
    return f" (accelerate runs in {mode} mode)" if mode and not _has_group(rank) else ""


def _find_remedy(ranks: list[RankRecord]) -> str:
    """Return what mends ranks without a process group; empty where there is one."""
    if _has_group(ranks[0]):
        return ""
    if ranks[0].steps[0].get("accelerate"):
        return "on CPUs tell accelerate so: Accelerator(cpu=True), or ACCELERATE_USE_CPU=true in the environment"
    return "call torch.distributed.init_process_group, and wrap the model"


def _find_silent(ranks: list[RankRecord], last: int) -> int | None:
    """Return the first step after the last sampled one that exchanges less than any until then; None without one."""
    for rank in ranks:
        usual = [step.get("num_collectives", 0) for step in rank.steps[1:] if step["step"] <= last]
        for step in rank.steps:
            if usual and step["step"] > last and step.get("num_collectives", 0) < min(usual):
                return int(step["step"])
    return None


def _count_exchanges(rank: RankRecord) -> int:
    """Return the collectives of the step that has most of them; the first one builds the groups, too."""
    return max((one.get("num_collectives", 0) for one in rank.steps[1:]), default=0)


def _are_averaged(rank: RankRecord) -> bool:
    """Return whether some step exchanges as many bytes as the parameters have, and not every step does."""
    size = rank.steps[0].get("parameter_bytes") or 0
    shares = [
        sum(num_bytes for _, num_bytes in step["traffic"].values()) / size
        for step in rank.steps[1:]
        if step.get("traffic") is not None and size
    ]
    return bool(shares) and max(shares) > _WHOLE > min(shares)


def _count_differing(digests_of_ranks: list[list[str]]) -> int:
    return sum(len(set(one)) > 1 for one in zip(*digests_of_ranks, strict=True))


def _describe(
    cell: str, ranks: list[RankRecord], wrong: list[int], num_tensors: int, differing: dict[int, int]
) -> Reason:
    step = next(one for one in ranks[0].steps if one["step"] == wrong[0])
    other = next(one for one in ranks[1].steps if one["step"] == wrong[0])
    micro = step["micros"][0]
    where = tell_line(micro.get("line"))
    wrapped = "wrapped by {wrapper}" if micro.get("wrapper") else "which no wrapper is around"
    lengths = _tell_apart(step["weights"], other["weights"])
    return explain(
        NO_GROUP if not _has_group(ranks[0]) else "ranks_differ" if micro.get("wrapper") or not where else UNWRAPPED,
        "{cell}: from step {step} on {differing} of {tensors} tensors differ between the ranks{lengths}; {model} is "
        "called" + " at {line}" * bool(where) + f", {wrapped}, and a step has " "{collectives:plural collective}{mode}",
        cell=cell, step=wrong[0], differing=differing[wrong[0]], tensors=num_tensors, lengths=lengths,
        model=micro.get("computed") or micro.get("model", "the model"), line=where, wrapper=micro.get("wrapper"),
        collectives=_count_exchanges(ranks[0]), mode=_tell_mode(ranks[0]),
    )  # fmt: skip


def _tell_apart(mine: Fields, other: Fields) -> str:
    """Return the first sampled elements that differ, with as many digits as tell them apart; empty if none does."""
    for one, another in zip(mine["head"], other["head"], strict=False):
        for digits in range(4, 18):
            told = [f"{value:.{digits}g}" for value in (one, another)]
            if told[0] != told[1]:
                return f" (an element is {told[0]} on rank 0, {told[1]} on rank 1)"
    return ""
