"""Is the gradient of an update the mean over its samples, of the right targets, exchanged and clipped as a whole?"""

from collections.abc import Sequence
from math import isclose, isfinite, sqrt
from statistics import median

from ddp_audit.findings import (
    HYGIENE,
    WRONG,
    each_common_step,
    fail,
    get_start,
    has_no_integers,
    holds_whole_model,
    list_rows,
    make_unobservable,
    question,
    sampled_digests,
    weigh,
)
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import Reason, explain
from ddp_audit.records import Audit, Fields, RankRecord, format_line


@question(
    "Labels are not the attention mask",
    "Is what the loss is compared with something else than the attention mask of the inputs?",
    WRONG,
    {"mask_as_labels": "The model learns the attention mask: that is what {cell}'s loss is given for labels"},
    "hand the labels over by name: an engine that takes the second tensor of a batch took the mask",
)
def labels(audit: Audit, cell: str) -> Finding | None:
    """Look for targets that are the mask, element by element."""
    every = [(rank.rank, step, micro) for rank in audit.ranks(cell) for step, micro in rank.micros()]
    looked = [item for item in every if item[2].get("has_mask") and (item[2].get("num_losses") or _is_wrong(item[2]))]
    wrong = [item for item in looked if _is_wrong(item[2])]
    if not wrong:
        text = "{cell}: the targets differ from the attention mask in all {micro_batches} micro-batches looked at"
        # Without a mask among the inputs it cannot have been taken for labels.
        return make_finding([], text, cell=cell, micro_batches=len(looked)) if looked else None
    rank_number, step, micro = wrong[0]
    numbers = {"wrong": len(wrong), "micro_batches": len(looked), "rank": rank_number, "step": step}
    if len(wrong) < len(looked):
        return make_unobservable(
            cell,
            "mask_at_times",
            "in {wrong} of {micro_batches} micro-batches looked at, first on rank {rank} at step {step}, the targets "
            "are the attention mask, and in the others they are not",
            **numbers,
        )
    where = format_line(micro.get("line"))
    text = (
        "in all {micro_batches:plural micro-batch} looked at the targets of the loss are the attention mask (rank "
        "{rank}, step {step}" + ", model called at {line}" * bool(where) + ")"
    )
    return fail(cell, "mask_as_labels", text, line=where, **numbers)


def _is_wrong(micro: Fields) -> bool:
    return bool(micro.get("labels_are_mask"))


_ALIKE = 1.02
_SAME = 1e-3
_SHARE = 0.1
"""Of the steps."""


@question(
    "Every target weighs the same",
    "Is the loss a sum over targets divided by those of the whole update, and no mean of means?",
    WRONG,
    {"means_of_means": "A mean of means: micro-batches of {least} and of {most} targets count alike in {cell}"},
    "sum the losses of the targets and divide by their number in the whole optimizer step, over all micro-batches and "
    "ranks (and multiply by the number of ranks where DDP divides by it)",
)
def loss_weights(audit: Audit, cell: str) -> Finding | None:
    """Compare the weight of a target in each micro-batch of a step, on all ranks."""
    ranks = audit.ranks(cell)
    if len(ranks) == 1 and all(len(step["micros"]) == 1 for step in ranks[0].steps):
        # An update of one loss is no mean of several.
        return None
    num_steps, wrong, every = 0, [], list(each_common_step(ranks))
    for step, micros in enumerate(every, start=1):
        known = [item for item in map(weigh, micros) if item is not None]
        if len(known) < len(micros) or len(known) < 2:
            continue
        num_steps += 1
        if _find_spread([of_target for of_target, _ in known]) <= _ALIKE:
            continue
        if _find_spread([of_mean for _, of_mean in known]) > 1 + _SAME:
            text = "what is back-propagated is no fixed multiple of such a loss"
            return make_unobservable(cell, "no_fixed_multiple", text)
        counts = [micro["num_targets"] for micro in micros]
        wrong.append((step, min(counts), max(counts), micros[0]))
    if not num_steps:
        # A mean over each of micro-batches that are alike is one over all.
        odd = [micros for micros in every if len({str(item.get("shape")) for item in micros}) > 1]
        if has_no_integers(audit, cell) and len(odd) <= _SHARE * len(every):
            return make_finding([], "{cell}: all micro-batches of a step have as many samples", cell=cell)
        text = "no step had several micro-batches whose loss is one unweighted loss of torch.nn.functional"
        return make_unobservable(cell, "no_such_loss", text)
    numbers = {"steps_compared": num_steps, "steps_of_means_of_means": len(wrong)}
    if not wrong:
        text = "{cell}: a target weighs the same in every micro-batch of {steps_compared:plural step} looked at"
        return make_finding([], text, cell=cell, **numbers)
    step, least, most, micro = wrong[0]
    numbers |= {"wrong": len(wrong), "step": step}
    if len(wrong) < max(2, _SHARE * num_steps):
        return make_unobservable(
            cell,
            "means_of_means_at_times",
            "in {wrong} of {steps_compared} steps looked at, first at step {step}, micro-batches count alike though "
            "their targets do not, and in the others they do not",
            **numbers,
        )
    where = format_line(micro.get("line"))
    text = (
        "in {wrong} of {steps_compared} steps micro-batches count alike though their targets do not: at step {step} "
        "means over {least} and over {most} targets have the same weight" + " (model called at {line})" * bool(where)
    )
    return fail(cell, "means_of_means", text, least=least, most=most, line=where, **numbers)


def _find_spread(weights: list[float]) -> float:
    return max(weights) / min(weights) if min(weights) > 0 else float("inf")


_LONGER = 1.25
_LONGER_OF_OTHER_ROWS, _FEWEST_STEPS = 1.6, 4
_NEAR = 0.15
_OTHER = 0.1
"""Of its length, at most."""
_SAMPLED = 64
"""Elements of each tensor that a digest is of, at most."""


@question(
    "Same gradient as the baseline",
    "Is the gradient of an update the mean over its samples in every cell, and not a multiple of it?",
    WRONG,
    {
        "other_scale": "The gradient is another multiple of the mean in each cell: {scale:.3g} times in {cell}, "
        "{scale_of_baseline:.3g} times in {baseline}{at}",
        "other_length": "The gradient of {cell} is {ratio:.2f} times as long as that of {baseline}",
        "undivided": "The loss is not divided by the {micro_batches} micro-batches of an update: the gradient of "
        "{cell} is their sum{at}",
    },
    "divide the loss by the number of micro-batches of an update (DDP then takes the mean over the ranks), so that it "
    "is a mean over all samples whatever the number of ranks",
)
def gradient_scale(audit: Audit, cell: str) -> Finding | None:
    """Compare by what the loss is multiplied, then the first gradient, or the lengths of several."""
    ranks, base = audit.ranks(cell), audit.ranks(audit.baseline)
    mine, its = (_find_scale(item) for item in (ranks, base))
    steps, where = [item[0].steps[0] for item in (ranks, base)], format_line(ranks[0].steps[0].get("backward_line"))
    numbers = {
        "baseline": audit.baseline, "scale": mine, "scale_of_baseline": its, "at": f", at {where}" * bool(where),
        "micro_batches": len(steps[0]["micros"]), "micro_batches_of_baseline": len(steps[1]["micros"]),
    }  # fmt: skip
    is_known = mine is not None and its is not None
    if mine is not None and its is not None and max(mine / its, its / mine) > _LONGER:
        text = (
            "what an update of {micro_batches:plural micro-batch} per rank back-propagates adds up to {scale:.3g} "
            "times the mean of its losses, in {baseline}, of {micro_batches_of_baseline:plural micro-batch}, to "
            "{scale_of_baseline:.3g} times: its gradient is {ratio:.2f} times as long{at}{hint}"
        )
        return fail(cell, "other_scale", text, ratio=mine / its, hint=_hint(mine / its, len(ranks)), **numbers)
    if mine is not None and _is_sum(ranks, mine):
        text = (
            "each of the {micro_batches} micro-batches of an update back-propagates its whole mean, so that the "
            "gradient is {scale:.3g} times the mean over them{at}"
        )
        return fail(cell, "undivided", text, **numbers)
    doubt = find_other_gradient(audit, cell, is_scale_known=is_known)
    if doubt is not None:
        ratio, counts = doubt.numbers.get("ratio"), [len(step["micros"]) for step in steps]
        if not is_known and isinstance(ratio, float):
            # As many times as long as there are times the ranks or micro-batches.
            multiples = {len(ranks) / len(base), counts[1] / counts[0]} - {1.0}
            longer = max(ratio, 1 / ratio)
            if any(abs(longer / max(multiple, 1 / multiple) - 1) <= _NEAR for multiple in multiples):
                return make_finding([doubt], doubt)
        return make_unobservable(cell, doubt.code, "{doubt}", doubt=doubt.sentence.removeprefix(f"{cell}: "))
    if not holds_whole_model(ranks, base):
        return make_unobservable(cell, "model_in_parts", "no rank holds a whole gradient")
    text = (
        "the loss is multiplied alike in both, by {scale:.3g}"
        if is_known
        else "no gradient that was looked at is longer than that of {baseline}"
    )
    return make_finding([], "{cell}: " + text, cell=cell, **numbers)


def _find_scale(ranks: list[RankRecord]) -> float | None:
    """Return how many times the mean loss of its micro-batches an update back-propagates; None if it is not known.

    DDP takes the mean over the ranks; of any other exchange it is not known what it makes of a sum.
    """
    results = []
    for micros in each_common_step(ranks):
        weights = [weigh(micro) for micro in micros]
        if not all(weight is not None for weight in weights):
            continue
        if len(ranks) > 1 and any(micro.get("wrapper") != "DistributedDataParallel" for micro in micros):
            return None
        scale = sum(of_mean for _, of_mean in filter(None, weights)) / len(ranks)
        results += [scale] * isfinite(scale)
    return median(results) if results else None


def _is_sum(ranks: list[RankRecord], scale: float) -> bool:
    """Return whether an update adds up the means of several batches of one loader, for which one line calls the model.

    Losses of several tasks, or of what is real and what is made, are called for by lines of their own.
    """
    number = median(len(step["micros"]) for step in ranks[0].steps)
    alike = {
        (micro.get("loader"), micro.get("reduction"), str(micro.get("line")), micro.get("module"))
        for _, micro in ranks[0].micros() if micro.get("num_losses")
    }  # fmt: skip
    if any(step.get("num_inside", 0) > 1 for step in ranks[0].steps):
        # The optimizer itself asks for several gradients.
        return False
    ((loader, reduction, line, _), *others) = alike or {(None, "", "None", 0)}
    is_one = not others and loader is not None and reduction == "mean" and line != "None"
    return is_one and number > 1 and abs(scale / number - 1) < _SAME


def find_other_gradient(audit: Audit, cell: str, *, is_scale_known: bool = False) -> Reason | None:
    """Return how the gradient of the first step differs from the baseline's; None where it does not, or is not known.

    It is what the optimizer finds: after the exchange and after clipping. Where a forward pass draws numbers at random,
    as dropout does, or the first step has other rows, its length before clipping is compared over several steps,
    unless it is known that the loss is scaled alike.
    """
    ranks, base = audit.ranks(cell), audit.ranks(audit.baseline)
    mine, its = (item[0].steps[0].get("gradient") or {} for item in (ranks, base))
    if not holds_whole_model(ranks, base) or len(mine.get("digests", [])) != len(its.get("digests", [])):
        return None
    is_random = any(
        micro.get("is_random") or micro.get("has_drawn")
        for rank in (*ranks, *base)
        for micro in rank.steps[0]["micros"]
    )
    numbers = {"cell": cell, "baseline": audit.baseline}
    if is_random or not _begin_alike(ranks, base):
        # Of other rows a gradient is as long as it happens to be.
        ratio = 1.0 if is_scale_known else _compare_lengths(ranks[0], base[0])
        if max(ratio, 1 / ratio) <= _LONGER_OF_OTHER_ROWS:
            return None
        text = "{cell}: its gradients are {ratio:.2f} times as long as those of {baseline} in most steps looked at"
        return explain("other_length", text + _hint(ratio, len(ranks)), ratio=ratio, **numbers)
    lengths = [gradient.get("l2") or 0.0 for gradient in (mine, its)]
    if not all(length > 0 and isfinite(length) for length in lengths):
        return None
    alike = ", though the first step begins with {baseline}'s weights and learns from its rows"
    ratio = lengths[0] / lengths[1]
    if max(ratio, 1 / ratio) > _LONGER:
        text = "{cell}: its gradient is {ratio:.2f} times as long" + alike + _hint(ratio, len(ranks))
        return explain("other_length", text, ratio=ratio, **numbers)
    pairs = list(zip(mine["head"], its["head"], strict=False))
    usual = lengths[1] * sqrt(len(pairs) / (_SAMPLED * len(its["digests"])))
    apart = sqrt(sum((pair - other) ** 2 for pair, other in pairs))
    if (apart / max(sqrt(sum(other**2 for _, other in pairs)), usual)) <= _OTHER:
        return None
    text = "{cell}: its gradient is another one" + alike + ": other targets, another loss, or numbers drawn at random"
    return explain("other_gradient", text, **numbers)


def _hint(ratio: float, num_ranks: int) -> str:
    """Return what makes a gradient as many times as long as there are ranks, and how to mend it; else nothing."""
    if abs(ratio / num_ranks - 1) > _NEAR:
        return ""
    return (
        f", as where a mean over each rank's own targets is multiplied by the {num_ranks} ranks: transformers.Trainer "
        "does it for a model whose loss takes no number of items, unless average_tokens_across_devices is False"
    )


def _compare_lengths(rank: RankRecord, base: RankRecord) -> float:
    """Return how many times as long its gradients are as the baseline's in the same steps, the median; 1 of few."""
    mine, its = ({step["step"]: _measure(step) for step in it.steps} for it in (rank, base))
    results = [(mine[step], its.get(step)) for step in mine]
    ratios = [result / other for result, other in results if result and other and isfinite(result) and isfinite(other)]
    return median(ratios) if len(ratios) >= _FEWEST_STEPS else 1.0


def _measure(step: Fields) -> float | None:
    """Return the norm that clipping was told, or else the length of the gradient's sampled elements."""
    clips = step.get("clips") or []
    if len(clips) == 1:
        return float(clips[0]["norm"])
    return None if clips else (step.get("gradient") or {}).get("l2")


def _begin_alike(*of_cells: list[RankRecord]) -> bool:
    """Return whether the first step has the same weights and the same rows, all ranks together."""
    mine, its = ([list_rows(rank.steps[0]) for rank in ranks] for ranks in of_cells)
    if None in mine or None in its:
        return False
    start, rows = (
        get_start(of_cells[0])[0],
        [sorted(row for some in item for row in some or []) for item in (mine, its)],
    )
    return bool(start and rows[0]) and start == get_start(of_cells[1])[0] and rows[0] == rows[1]


_NORMS_APART = 1e-3
_FEWEST_KEPT = 2


@question(
    "Clipped by one norm",
    "Is the gradient clipped by the same norm on every rank?",
    WRONG,
    {"other_norm": "Each rank clips by a norm of its own: {on_ranks} in step {step} of {cell}"},
    "clip after the exchange, by the norm of the whole gradient (FSDP: its own clip_grad_norm_, or DTensors)",
)
def clipping(audit: Audit, cell: str) -> Finding | None:
    """Compare the norms that the clipping of torch was told, or worked out, step by step."""
    ranks, problems, num_compared, num_steps = audit.ranks(cell), [], 0, 0
    early = [step["step"] for rank in ranks for step in rank.steps if step.get("is_gradient_changed_early")]
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        clips = [step.get("clips", []) for step in steps]
        if len({len(clip) for clip in clips}) > 1:
            return make_unobservable(cell, "clips_differ_in_number", "the ranks clip a different number of times")
        num_steps += bool(clips[0])
        for of_ranks in zip(*clips, strict=True):
            num_compared += 1
            norms = [rank["norm"] for rank in of_ranks]
            if max(norms) - min(norms) > _NORMS_APART * max(norms):
                where = format_line(of_ranks[0].get("line"))
                on_ranks = [f"{norm:.4g} on rank {rank}" for rank, norm in enumerate(norms[:4])]
                text = "{cell}: step {step} was clipped" + " at {line}" * bool(where) + " by the norm {on_ranks}"
                step = steps[0]["step"]
                problems.append(
                    explain("other_norm", text, cell=cell, step=step, line=where, norms=norms, on_ranks=on_ranks)
                )
    if early and not problems:
        return make_unobservable(
            cell,
            "changed_early",
            "in step {step} something may change the gradient before all of it is summed up over the ranks: between "
            "its micro-batches, or by a hook on a parameter or on DDP's exchange",
            step=min(early),
        )
    if not num_compared:
        # Where the optimizer finds the gradient as the backward pass has left it, nothing has clipped it.
        known = [
            all(rank["is_gradient_kept"] for rank in of_ranks) or _is_summed(of_ranks)
            for of_ranks in zip(*(rank.steps for rank in ranks), strict=False) for _ in of_ranks
            if all(rank.get("is_gradient_kept") is not None for rank in of_ranks)
        ]  # fmt: skip
        if len(known) < _FEWEST_KEPT * len(ranks) or not all(known):
            text = "no clip_grad_norm_ was seen, and what changes the gradient before the optimizer's step is not known"
            return make_unobservable(cell, "no_clip_seen", text)
        text = (
            "{cell}: nothing clips it: in {steps:plural step} looked at, all ranks together, the optimizer found the "
            "gradient as the backward pass had left it, or the sum or mean of that over the ranks"
        )
        return make_finding([], text, cell=cell, steps=len(known), compared=0)
    first, *others = map(sampled_digests, ranks)
    differ = any(other[step] != first[step] for other in others for step in other if step in first)
    if problems and differ and holds_whole_model(ranks):
        return make_unobservable(cell, "models_differ", "every rank has a model of its own, and so a norm")
    return make_finding(
        problems,
        "{cell}: the norm was the same on all ranks, {compared:plural time} in {steps_compared:plural step} looked at",
        cell=cell, compared=num_compared, different=len(problems), steps_compared=num_steps,
    )  # fmt: skip


def _is_summed(steps: Sequence[Fields]) -> bool:
    """Return whether the script exchanges itself, and every optimizer finds the sum or mean of what backwards left."""
    if any(micro.get("wrapper") for step in steps for micro in step["micros"]):
        return False
    sums = [sum(of_ranks) for of_ranks in zip(*(step["left"] for step in steps), strict=False)]
    pairs = [pair for step in steps for pair in zip(step["gradient"]["head"], sums, strict=True)]
    return any(
        all(isclose(pair, whole / number, rel_tol=_SAME, abs_tol=1e-12) for pair, whole in pairs)
        for number in (1, len(steps))
    )


_MANY = 1.5
_LEAST = 0.4
"""Gradients may be exchanged in 16 bits."""
_KINDS = ("all_reduce", "allreduce", "allreduce_coalesced")


@question(
    "Exchanged once per update",
    "Is the gradient exchanged once per optimizer step, whatever the number of micro-batches?",
    HYGIENE,
    {
        "too_many_exchanges": "The gradient is exchanged {exchanges:g} times per update of {cell}, once is enough",
    },
    "wrap forward and backward of all but the last micro-batch in `with model.no_sync():`",
)
def exchange(audit: Audit, cell: str) -> Finding | None:
    """Count the exchanges that DDP was asked for, and the bytes that torch's process groups were given."""
    rank = audit.ranks(cell)[0]
    steps, size = rank.steps, rank.steps[0].get("parameter_bytes")
    if not holds_whole_model(audit.ranks(cell)):
        return make_unobservable(cell, "model_in_parts", "how often a model in parts has to exchange is not known")
    if len({micro.get("module") for _, micro in rank.micros()}) > 1:
        text = "several models are trained, and which backward is whose is not known"
        return make_unobservable(cell, "several_models", text)
    if any(step.get("num_inside", 0) > 1 for step in steps):
        return make_unobservable(cell, "several_gradients", "the optimizer itself asks for several gradients per step")
    per_step = [
        # A value that is False is left out of the record.
        sum(bool(micro.get("is_synchronised")) for micro in step["micros"])
        if any(micro.get("wrapper") == "DistributedDataParallel" for micro in step["micros"])
        else None
        for step in steps
    ]
    counted = [item for item in per_step if item is not None]
    traffic = [step["traffic"] for step in steps[1:] if step.get("traffic") is not None and size]
    results = [sum(item.get(kind, [0, 0])[1] for kind in _KINDS) / size for item in traffic]
    rounds = median(results) if results else None
    number = median(counted) if counted else rounds
    if number is None:
        text = "the exchange is none of DDP's, and torch kept no record of its bytes"
        return make_unobservable(cell, "no_record_of_exchanges", text)
    bytes_ = "" if rounds is None else " ({gradients_exchanged:.2f} times the gradient's bytes)"
    many = [step["step"] for step, item in zip(steps, per_step, strict=True) if (item or 0) >= _MANY]
    where = format_line(steps[0].get("backward_line"))
    numbers = {
        "micro_batches": round(median(len(step["micros"]) for step in steps)), "exchanges": number,
        "gradients_exchanged": rounds, "steps_of_more": len(many), "steps": len(steps),
        "first": many[0] if many else None, "line": where,
    }  # fmt: skip
    # Of the steps; one whose update a gradient scaler leaves out has the micro-batches of two.
    if numbers["micro_batches"] != 1 and (number >= _MANY or len(many) > _SHARE * len(steps)):
        often = "{exchanges:g} exchanges per update"
        if number < _MANY:
            often = "in {steps_of_more:,} of {steps:,} steps, first in step {first:,}, more than one exchange"
        text = f"{often} of {{micro_batches}} micro-batches{bytes_}, one is needed"
        return fail(cell, "too_many_exchanges", text + "; the backward is at {line}" * bool(where), **numbers)
    if rounds is not None and rounds < _LEAST:
        text = "the ranks exchange {gradients_exchanged:.2f} times the gradient's bytes by all-reduce"
        return make_unobservable(cell, "too_few_bytes", text, gradients_exchanged=rounds)
    text = "{cell}: {exchanges:g} exchange per update of {micro_batches:plural micro-batch}" + bytes_
    return make_finding([], text, cell=cell, **numbers)
