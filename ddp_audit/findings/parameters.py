"""Do the ranks train one model, from the right start, and does it learn?"""

import os
import re
from dataclasses import replace
from itertools import chain
from math import inf, isfinite
from operator import itemgetter
from typing import Any

from ddp_audit.findings import (
    UNLIKE,
    WRONG,
    fail,
    find_uneven_pass,
    get_start,
    holds_whole_model,
    list_shares,
    make_unobservable,
    question,
    sampled_digests,
    succeed,
)
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.records import Audit, Fields, RankRecord, format_line

NO_GROUP, NO_MODE, UNWRAPPED, SAME_WORK = "no_group", "accelerate_alone", "unwrapped", "same_work"
_ALONE = "NO"
"""How accelerate names its mode where it exchanges nothing."""
_FEW = 0.5
_WHOLE = 0.4
"""Of the parameters' bytes: models may be averaged in 16 bits."""


@question(
    "Same parameters on all ranks",
    "Do all ranks hold the same parameters after a step?",
    WRONG,
    {
        NO_GROUP: "The ranks train apart: {cell} makes no process group, so that nothing is exchanged{mode}",
        NO_MODE: "The ranks train apart: nothing is exchanged{mode}",
        UNWRAPPED: "The ranks train apart: {line} calls a model that nothing wraps",
        "start_apart": "The ranks train apart: they begin with other weights, {at_start} of {tensors} tensors, and "
        "exchange gradients alone",
        "data_parallel": "The ranks train apart: DataParallel, called at {line}, exchanges nothing between processes",
        "never_synchronised": "The ranks train apart: no backward pass exchanges, the last one of an update is in "
        "no_sync(), too",
        "ranks_differ": "The ranks train apart: {differing} of {tensors} tensors differ from step {step} on",
        "own_rates": "The ranks train apart: each has a learning rate of its own in step {step}, {rates}",
        SAME_WORK: "The ranks do the same work: nothing is exchanged{mode}, and their losses are equal, step by step",
    },
    "call the wrapped model (ddp_model(batch), not the module inside), give its parameters to the optimizer, and step "
    "optimizer and scheduler on every rank, by numbers that all of them have",
)
def same_parameters(audit: Audit, cell: str) -> Finding | None:
    """Compare digests of the parameters after the sampled steps."""
    ranks = audit.ranks(cell)
    of_ranks = [sampled_digests(rank) for rank in ranks]
    # Where the ranks have passes of other lengths, steps of one number are no more steps of one update.
    last = min((end for _, end in find_uneven_pass(ranks) if end is not None), default=inf)
    steps = sorted(step for step in set(of_ranks[0]).intersection(*of_ranks[1:]) if step <= last)
    if not holds_whole_model(ranks):
        return make_unobservable(cell, "model_in_parts", "each rank holds a part of the model")
    if not steps or not of_ranks[0][steps[0]]:
        return make_unobservable(cell, "no_step_sampled", "no step was sampled on every rank")
    if any(len({len(rank[step]) for rank in of_ranks}) > 1 for step in steps):
        text = "the ranks train other parameters than each other, as stages of a pipeline do"
        return make_unobservable(cell, "other_parameters", text)
    differing = {step: _count_differing([rank[step] for rank in of_ranks]) for step in steps}
    wrong, most, shares = [step for step in steps if differing[step]], max(differing.values()), list_shares(ranks[0])
    number = wrong[0] if wrong else steps[-1]
    step, other = (next(item for item in rank.steps if item["step"] == number) for rank in ranks[:2])
    micro = step["micros"][0]
    wrapper, where = micro.get("wrapper"), format_line(micro.get("line"))
    numbers: dict[str, Any] = {"step": number, "tensors": len(of_ranks[0][number]), "differing": most}
    if not wrong:
        text = (
            "equal on all ranks after each of {sampled_steps:plural sampled step} of {steps:,}, the last of them step "
        )
        about = {"sampled_steps": len(steps), "steps": audit.first(cell).num_steps, "last": number}
        return _doubt_equal(audit, cell, steps) or succeed(cell, text + "{last:,}", **about, **numbers)
    if wrong != steps[-len(wrong) :]:
        text = "the ranks differ after step {step} and not after every later one, as where models are averaged at times"
        return make_unobservable(cell, "averaged_at_times", text, **numbers)
    begun = [[at["start"]["digests"] for at in rank.steps if at["step"] in wrong[1:]] for rank in ranks]
    if (wrong[1:] and begun.count(begun[0]) == len(ranks)) or (shares and max(shares) > _WHOLE > min(shares)):
        text = "the ranks differ after a step, and exchange whole models between steps"
        return make_unobservable(cell, "models_exchanged", text)
    rates = f"{step['lr']} on rank 0, {other['lr']} on rank 1" * (step["lr"] != other["lr"])
    if not rates and most <= _FEW * max(len(of_ranks[0][step]) for step in steps):
        text = "{differing} of {tensors} tensors differ, as where ranks hold experts of their own"
        return make_unobservable(cell, "some_tensors_differ", text, **numbers)
    starts = [item for item in get_start(ranks) if item]
    at_start = _count_differing(starts) if len({len(start) for start in starts}) == 1 else 0
    are_exchanged, remedy = min(shares, default=0) > _WHOLE, _mend_group(ranks[0])
    if remedy:
        code = NO_MODE if ranks[0].steps[0].get("backend") else NO_GROUP
    elif wrapper == "DistributedDataParallel" and not any(item.get("is_synchronised") for _, item in ranks[0].micros()):
        code, remedy = "never_synchronised", "leave forward and backward of the last micro-batch outside of no_sync()"
    elif wrapper == "DataParallel":
        code, remedy = "data_parallel", "wrap the model by DistributedDataParallel: DataParallel is for one process"
    elif are_exchanged and at_start:
        code = "start_apart"
        remedy = "seed every rank alike, or broadcast the weights of rank 0; DDP does when it wraps a model"
    else:
        is_spread = wrapper or are_exchanged or not where
        code = ("own_rates" if rates else "ranks_differ") if is_spread else UNWRAPPED
    text = (
        "from step {step} on {differing} of {tensors} tensors differ between the ranks{lengths}; {model} is called"
        + " at {line}" * bool(where)
        + (", wrapped by {wrapper}" if wrapper else ", which no wrapper is around")
        + ", and a step has {collectives:plural collective}{mode}"
    )
    numbers |= {
        "differing": differing[number], "at_start": at_start, "line": where, "wrapper": wrapper,
        "rates": rates, "lengths": _format_apart(step["weights"], other["weights"]), "mode": _format_mode(ranks[0]),
        "model": micro.get("computed") or micro.get("model", "the model"), "collectives": _count_exchanges(ranks[0]),
    }  # fmt: skip
    figure = f"{cell} is {len(ranks)} trainings side by side, each of its own rows: there is no speedup of one training"
    return replace(fail(cell, code, text, **numbers), true_figure=figure, remedy=remedy)


def _doubt_equal(audit: Audit, cell: str, steps: list[int]) -> Finding | None:
    """Return what is found of ranks whose parameters are equal in these steps where that is no proof of an exchange."""
    ranks, last = audit.ranks(cell), steps[-1]
    if all(_never_changed(rank) for rank in ranks):
        text = "no parameter was seen to change in any of {steps:plural sampled step}, so that equal ones say nothing"
        return make_unobservable(cell, "unchanged", text, steps=len(steps))
    first, *others = (next(step.get("buffers") or {} for step in rank.steps if step["step"] == last) for rank in ranks)
    apart = [name for name in first if any(other.get(name, first[name]) != first[name] for other in others)]
    if apart:
        text = (
            "the parameters are equal, and what is kept beside them is not, after step {last:,}: {buffers}; whoever "
            "computes by it reduces it over the ranks first"
        )
        return make_unobservable(cell, "buffers_differ", text, last=last, buffers=apart[:4])
    if not _count_exchanges(ranks[0]):
        # Of the steps that all have made: a launch that is ended may have made one more on some.
        losses = list(zip(*([micro.get("loss") for _, micro in rank.micros()] for rank in ranks), strict=False))
        if any(loss[0] is not None for loss in losses) and all(len(set(loss)) == 1 for loss in losses):
            text = (
                "{ranks:plural rank} exchange nothing, and have the same parameters and the same losses: each does all "
                "the work by itself{mode}"
            )
            result = fail(cell, SAME_WORK, text, ranks=len(ranks), mode=_format_mode(ranks[0]))
            return replace(result, remedy=_mend_group(ranks[0]))
        text = (
            "no step exchanged anything: either the ranks do the same work, or exchange by means of their own, or what "
            "was read of their parameters is not what they are"
        )
        return make_unobservable(cell, "nothing_exchanged", text)
    for rank in ranks:
        numbers = {step["step"]: step.get("num_collectives", 0) for step in rank.steps[1:]}
        usual = min((number for step, number in numbers.items() if step <= last), default=0)
        if silent := next((step for step, number in numbers.items() if step > last and number < usual), None):
            text = (
                "the parameters are equal up to step {last:,}, the last one that was sampled; step {silent:,} "
                "exchanges less than any until then"
            )
            return make_unobservable(cell, "silent_later", text, last=last, silent=silent)
    return None


def _format_mode(rank: RankRecord) -> str:
    return " (accelerate runs in NO mode)" * (rank.steps[0].get("accelerate") == _ALONE)


def _mend_group(rank: RankRecord) -> str:
    """Return what mends a rank that joins no other; empty where it does."""
    if rank.steps[0].get("accelerate") == _ALONE:
        return "on CPUs tell accelerate so: Accelerator(cpu=True), or ACCELERATE_USE_CPU=true in the environment"
    text = "call torch.distributed.init_process_group, and wrap the model by DistributedDataParallel"
    return text * (not rank.steps[0].get("backend"))


def _count_exchanges(rank: RankRecord) -> int:
    """Return the collectives of the step that has most of them; the first one builds the groups, too."""
    return max((step.get("num_collectives", 0) for step in rank.steps[1:]), default=0)


def _count_differing(digests_of_ranks: list[list[str]]) -> int:
    return sum(len(set(rank)) > 1 for rank in zip(*digests_of_ranks, strict=True))


def _format_apart(mine: Fields, other: Fields) -> str:
    """Return the first sampled elements that differ, with as many digits as tell them apart; empty if none does."""
    for item, another in zip(mine["head"], other["head"], strict=False):
        for digits in range(4, 18):
            texts = [f"{value:.{digits}g}" for value in (item, another)]
            if texts[0] != texts[1]:
                return f" (an element is {texts[0]} on rank 0, {texts[1]} on rank 1)"
    return ""


NO_GRADIENT = "no_gradient"
_FEWEST_STEPS = 2
_FEWEST_OF_OTHERS = 4


@question(
    "Something is learned",
    "Does every rank make steps, does the optimizer find a gradient, and do the parameters change?",
    WRONG,
    {
        "rank_without_steps": "Rank {rank} of {cell} learns nothing: it makes no optimizer step, and others {steps:,}",
        NO_GRADIENT: "Nothing is learned: the gradient is zero in all {sampled_steps:plural step} looked at of {cell}",
        "gradient_missing": "Nothing is learned: the parameters of {cell}'s optimizer get no gradient",
        "nothing_changed": "Nothing is learned: no parameter of {cell} changes in {sampled_steps:plural step}",
    },
    "look at the loss (cross-entropy over one logit is constant), at what the optimizer was given (the parameters of "
    "the model that is called), at its learning rate, and at parameters kept in 16 bits, which small updates leave as "
    "they are",
)
def learning(audit: Audit, cell: str) -> Finding | None:
    """Look at the gradient that the optimizer finds, and at the parameters before and after, in sampled steps."""
    ranks = audit.ranks(cell)
    idle = [rank for rank in ranks if not rank.steps and "torch" in rank.lines]
    most = max(len(rank.steps) for rank in ranks)
    if idle and most >= _FEWEST_OF_OTHERS:
        text = "rank {rank} imports torch and makes no optimizer step, while another one makes {steps:,}"
        return fail(cell, "rank_without_steps", text, rank=idle[0].rank, steps=most)
    gradients = [[step["gradient"] for step in rank.steps if step.get("gradient")] for rank in ranks]
    num_steps, every = min(len(sampled_digests(rank)) for rank in ranks), list(chain(*gradients))
    if not every or num_steps < _FEWEST_STEPS:
        return make_unobservable(cell, "no_step_sampled", "too few steps were sampled to see what changes")
    numbers = {"sampled_steps": num_steps, "line": format_line(ranks[0].steps[0].get("step_line"))}
    begin = "in {sampled_steps:plural step} looked at "
    code, text = "", "there is a gradient, and parameters change"
    if not any(gradient.get("digests") for gradient in every):
        code, text = "gradient_missing", "no parameter of the optimizer has a gradient"
    elif all(gradient.get("is_zero") for gradient in every):
        code, text = NO_GRADIENT, "the gradient is zero, every element of it"
    elif all(_never_changed(rank) for rank in ranks):
        if not all(any(item.get("l2", 0.0) > 0 for item in of_rank) for of_rank in gradients):
            text = "no parameter was seen to change, of which a few elements alone were looked at"
            return make_unobservable(cell, "few_elements", text)
        code, text = "nothing_changed", "the optimizer finds a gradient, and leaves all parameters as they were"
    if not code:
        return succeed(cell, begin + text, **numbers)
    end = " (the optimizer's step is at {line})" * bool(numbers["line"])
    return fail(cell, code, begin + text + end, **numbers)


def _never_changed(rank: RankRecord) -> bool:
    """Return whether every sampled step left the parameters what they were when they were seen first."""
    seen = get_start([rank])[0]
    if seen is None:
        return False
    for digest in sampled_digests(rank).values():
        if digest[: len(seen)] != seen:
            return False
        # Those of an optimizer whose first step came later.
        seen = digest
    return True


_MOST_NOT_FINITE = 0.5
"""Of the losses that were read: a few are what scaling in 16 bit tries out, and skips."""


@question(
    "Numbers stay finite",
    "Are losses and parameters numbers, and not NaN or infinite?",
    WRONG,
    {
        "losses_not_finite": "The loss is no number from step {step} of {cell} on",
        "parameters_not_finite": "Parameters are no numbers from step {step} of {cell} on",
    },
    "a lower learning rate, clipping, another precision; stop where a loss is no number",
)
def finite(audit: Audit, cell: str) -> Finding | None:
    """Look at the losses as they were back-propagated, and at sampled parameters."""
    num_losses = 0
    for rank in audit.ranks(cell):
        known = [(step, micro["loss"]) for step, micro in rank.micros() if micro.get("loss") is not None]
        wrong = [step for step, loss in known if not isfinite(loss)]
        num_losses += len(known)
        if len(wrong) > _MOST_NOT_FINITE * len(known):
            text = "{wrong} of the {losses} losses that were read on rank {rank} are no numbers, first in step {step}"
            numbers = {"wrong": len(wrong), "losses": len(known), "rank": rank.rank, "step": wrong[0]}
            return fail(cell, "losses_not_finite", text, **numbers)
        lost = [step["step"] for step in rank.steps if not _are_numbers(step.get("weights"))]
        if lost and _are_numbers(rank.steps[0].get("start")):
            text = "on rank {rank} parameters are no numbers from step {step} on"
            return fail(cell, "parameters_not_finite", text, rank=rank.rank, step=lost[0])
    text = "most of the {losses_read:,} losses that were read are numbers, and so are the parameters"
    return succeed(cell, text, losses_read=num_losses)


def _are_numbers(digest: Fields | None) -> bool:
    return digest is None or isfinite(digest.get("l2", 0.0))


_RESUMES = re.compile(r"resume|restore|init_from|load_from", re.IGNORECASE)
_PATH = re.compile(r"^[./~]|/.*/|\.(pt|pth|bin|ckpt|safetensors|tar)$")
"""What is surely one: a name with a single slash may be a model's on a hub."""


@question(
    "Begins from the weights it was told to",
    "Where the script is told to resume from a file, does it hold that file's weights at the first step?",
    WRONG,
    {
        "file_missing": "It begins anew though it was told to go on: {name}={path} is no file",
        "file_not_used": "It begins anew though it was told to go on: nothing of {name}={path} is held at first",
    },
    "end with an error where the file to go on from is missing or does not fit; don't begin anew in silence",
)
def start_weights(audit: Audit, cell: str) -> Finding | None:
    """Compare the first step's parameters with what was read from the file that the script was told to go on from."""
    problems, held, result = [], 0, 0
    for rank in audit.ranks(cell):
        names: Fields = next((line["names"] for line in rank.lines.get("asked", [])), {})
        paths = {
            name: path for name, path in names.items()
            if _RESUMES.search(name) and isinstance(path, str) and _PATH.search(path)
        }  # fmt: skip
        result += len(paths)
        for name, path in paths.items():
            asked = {"name": name, "path": path, "rank": rank.rank}
            if not rank.lines["asked"][0]["are_there"].get(name):
                written = [item["path"] for item in rank.lines.get("open", []) if item["mode"] in "wx"]
                is_own = any(item.endswith(os.path.normpath(path)) for item in written)
                if is_own or not any(path in word for word in audit.request.words_for(cell)):
                    text = "{name}={path} is what the script writes, or its own default: it may begin where none is"
                    return make_unobservable(cell, "written_by_itself", text, **asked)
                text = "{cell}: {name}={path} is no file, and rank {rank} trained {steps} steps all the same"
                problems.append(explain("file_missing", text, cell=cell, steps=len(rank.steps), **asked))
                continue
            ends = os.path.basename(path)
            read = (item for item in rank.lines.get("loaded", []) if item["path"].endswith(ends))
            # Each model is looked at before the first step of its own optimizer.
            loaded = max(read, key=itemgetter("num_held"), default=None)
            if loaded is None:
                text = "{name}={path} was not read by torch.load or safetensors on rank {rank}"
                return make_unobservable(cell, "file_not_read", text, **asked)
            held += bool(loaded["num_held"])
            if not loaded["num_held"]:
                if not holds_whole_model(audit.ranks(cell)):
                    text = "{name}={path} was read, and rank {rank} holds a part of the model"
                    return make_unobservable(cell, "model_in_parts", text, **asked)
                text = "{cell}: {name}={path} was read, and none of rank {rank}'s {tensors} tensors is from it at first"
                tensors = loaded["num_parameters"]
                problems.append(explain("file_not_used", text, cell=cell, tensors=tensors, **asked))
    text = "{cell}: at the first step {ranks_that_hold_them:plural rank} hold tensors of the file to go on from"
    # None where nothing was asked for.
    return make_finding(problems, text, cell=cell, ranks=result, ranks_that_hold_them=held) if result else None


UNSEEDED = "unseeded"
_MOST_SEED = 1 << 32
"""A larger one has torch drawn itself, where nobody gave it one."""


@question(
    "Same weights at the start",
    "Does the first step begin with the baseline's weights?",
    UNLIKE,
    {
        UNSEEDED: "Nothing seeds the script: every launch starts from weights of its own",
        "other_weights": "{cell} starts from other weights: {differing} of {tensors} tensors differ from {baseline}'s",
    },
    "load the same checkpoint, or call torch.manual_seed with the same number before the model is made",
)
def same_start(audit: Audit, cell: str) -> Finding | None:
    """Compare digests of the parameters before the first step."""
    both = [audit.ranks(cell), audit.ranks(audit.baseline)]
    mine, base = (get_start(ranks)[0] or [] for ranks in both)
    seeds = {ranks[0].steps[0].get("seed") or 0 for ranks in both}
    numbers: dict[str, Any] = {"cell": cell, "baseline": audit.baseline, "tensors": len(mine)}
    if not holds_whole_model(*both):
        return make_unobservable(cell, "model_in_parts", "no rank holds the whole model")
    if not mine or len(mine) != len(base):
        text = "its optimizer has other parameters than that of {baseline}"
        return make_unobservable(code="other_parameters", template=text, **numbers)
    if differing := _count_differing([mine, base]):
        code = UNSEEDED if min(seeds) > _MOST_SEED and len(seeds) > 1 else "other_weights"
        text = "{differing} of {tensors} tensors differ from {baseline}'s before the first step"
        return fail(code=code, template=text, differing=differing, **numbers)
    return succeed(template="all {tensors} tensors are {baseline}'s before the first step", **numbers)
