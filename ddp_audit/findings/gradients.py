"""Is the gradient of an update the mean over its samples, of the right targets, exchanged and clipped as a whole?"""

from collections.abc import Sequence
from itertools import chain, compress
from math import dist, hypot, inf, isclose, isfinite, log2, sqrt
from statistics import median

from ddp_audit.findings import (
    HYGIENE,
    WRONG,
    do_optimizers_take_turns,
    each_common_step,
    fail,
    get_start,
    has_no_integers,
    holds_whole_model,
    list_micros,
    list_passes,
    list_rows,
    list_shares,
    make_unobservable,
    question,
    sampled_digests,
    succeed,
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
    looked = [
        (rank.rank, step, micro) for rank in audit.ranks(cell) for step, micro in rank.micros()
        if micro.get("mask") and (micro.get("num_losses") or micro.get("labels_are_mask"))
    ]  # fmt: skip
    wrong = [item for item in looked if item[2].get("labels_are_mask")]
    if not wrong:
        text = "the targets differ from the attention mask in all {micro_batches} micro-batches looked at"
        # Without a mask among the inputs it cannot have been taken for labels.
        return succeed(cell, text, micro_batches=len(looked)) if looked else None
    rank, step, micro = wrong[0]
    where = format_line(micro.get("line"))
    numbers = {"wrong": len(wrong), "micro_batches": len(looked), "rank": rank, "step": step, "line": where}
    text = (
        "in {wrong} of {micro_batches} micro-batches looked at, first on rank {rank} at step {step}, the targets are "
    )
    if len(wrong) < len(looked):
        return make_unobservable(cell, "mask_at_times", text + "the attention mask, in the others not", **numbers)
    return fail(cell, "mask_as_labels", text + "the attention mask" + _called(where), **numbers)


def _called(where: str) -> str:
    return " (model called at {line})" * bool(where)


_FEWEST_KEPT = 2
_CHANGED_ALIKE = 1.1
"""A gradient that is clipped by hand is shortened alike in all cells: by the same share, but for this factor."""
_ALIKE = 1.02
_SAME = 1e-3
_SHARE = 0.1
"""Of the steps, and of a loss."""


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
    num_steps, num_unknown, wrong, every = 0, 0, [], [_split_tasks(micros) for micros in each_common_step(ranks)]
    # What is left over at the end of a pass makes a smaller micro-batch.
    ends = {end for rank in ranks for _, end in list_passes(rank)}
    if len(ranks) == 1 and all(len(micros) == 1 for tasks in every for micros in tasks):
        # An update of one loss is no mean of several.
        return None
    usual = median(sum(map(len, tasks)) for tasks in every) if every else 0
    for step, tasks in enumerate(every, start=1):
        unlike = [micros for micros in tasks if not _weigh_alike(micros)]
        if None in map(weigh, chain(*unlike)) or max(map(len, tasks)) < 2:
            num_unknown += step not in ends and any(len(set(map(_format_targets, micros))) > 1 for micros in unlike)
            continue
        num_steps += 1
        for micros in unlike:
            weights = zip(*filter(None, map(weigh, micros)), strict=True)
            of_target, of_mean = (max(item) / min(item) if min(item) > 0 else inf for item in weights)
            if of_target <= _ALIKE and all(map(_is_whole, micros)):
                continue
            if of_target <= _ALIKE or of_mean > 1 + _SAME or not all(_is_whole(micro, _SHARE) for micro in micros):
                if sum(map(len, tasks)) > usual:
                    # A gradient scaler has left out an update, and scales less from then on.
                    num_steps, num_unknown = num_steps - 1, num_unknown + 1
                    break
                text = "what is back-propagated is no fixed multiple of such a loss"
                return make_unobservable(cell, "no_fixed_multiple", text)
            counts = [micro["weights"][0][0] for micro in micros]
            wrong.append((step, min(counts), max(counts), format_line(micros[0].get("line"))))
            break
    if num_unknown > _SHARE * (num_steps + num_unknown):
        text = "what a target weighs is not known in {unknown:plural step}, of several losses at once or of two updates"
        return make_unobservable(cell, "no_such_loss", text, unknown=num_unknown)
    if not num_steps:
        return _judge_shapes(audit, cell, every)
    numbers = {"steps_compared": num_steps, "steps_of_means_of_means": len(wrong)}
    if not wrong:
        text = "a target weighs the same in every micro-batch of {steps_compared:plural step} looked at"
        return succeed(cell, text, **numbers)
    is_rare = all(item[0] in ends for item in wrong) or len(wrong) < max(2, _SHARE * num_steps)
    step, least, most, where = wrong[0]
    text = (
        "in {wrong} of {steps_compared} steps micro-batches count alike though their targets do not: at step {step} "
        "means over {least} and over {most} targets have the same weight"
    ) + _called(where)
    numbers |= {"wrong": len(wrong), "step": step, "least": least, "most": most}
    if is_rare:
        return make_unobservable(cell, "means_of_means_at_times", text, line=where, **numbers)
    return fail(cell, "means_of_means", text, line=where, **numbers)


def _judge_shapes(audit: Audit, cell: str, every: list[list[list[Fields]]]) -> Finding:
    """Judge micro-batches of losses that are not known: a mean over each of those that are alike is one over all."""
    odd = [tasks for tasks in every if len({str(item.get("shape")) for item in chain(*tasks)}) > 1]
    if has_no_integers(audit, cell) and len(odd) <= _SHARE * len(every):
        return succeed(cell, "all micro-batches of a step have as many samples")
    text = "no step had several micro-batches whose loss is one unweighted loss of torch.nn.functional"
    return make_unobservable(cell, "no_such_loss", text)


def _weigh_alike(micros: list[Fields]) -> bool:
    """Return whether micro-batches have as many samples and targets, of the same weight: a mean of their means is one.

    What else is added to their losses may be a mean of its own: there has to be little of it.
    """
    known = [
        [micro.get("shape"), [item[:2] for item in held]] for micro in micros
        if (held := micro.get("weights")) and len(held) == micro.get("num_losses") and not micro.get("is_weighted")
        and _is_whole(micro, _SHARE)
    ]  # fmt: skip
    return bool(known) and known == known[:1] * len(micros)


def _format_targets(micro: Fields) -> str:
    return str([number for number, *_ in micro.get("weights") or []])


def _is_whole(micro: Fields, most: float = _ALIKE - 1) -> bool:
    """Return whether nothing but losses of torch's is back-propagated, or at most such a share beside them."""
    return isclose(micro.get("loss") or inf, sum(share for *_, share in micro["weights"]), rel_tol=most)


def _split_tasks(micros: list[Fields]) -> list[list[Fields]]:
    """Return micro-batches by where they come from and which model they are for: tasks have a loss of their own each.

    What no loader gives out is known by the line that calls the model.
    """
    tasks: dict[tuple[str, int | None], list[Fields]] = {}
    for micro in micros:
        source = str(micro.get("line") if micro.get("loader") is None else micro["loader"])
        tasks.setdefault((source, micro.get("module")), []).append(micro)
    return list(tasks.values())


@question(
    "A gradient of its own for every update",
    "Is the gradient cleared once per update, and neither kept from the one before nor thrown away in between?",
    WRONG,
    {
        "never_cleared": "The gradient is never cleared: every update of {cell} adds to those before it",
        "thrown_away": "Gradients are thrown away: an update of {cell} learns from the last of {micro_batches} "
        "micro-batches alone",
    },
    "call optimizer.zero_grad() once per update, right after optimizer.step() or before the first micro-batch",
)
def own_gradient(audit: Audit, cell: str) -> Finding | None:
    """Look at what is there before every backward pass of sampled steps."""
    ranks = audit.ranks(cell)
    seen = [step for rank in ranks for step in rank.steps if step.get("is_gradient_stale") is not None]
    steps, where = {step["step"] for step in seen}, format_line(ranks[0].steps[0].get("backward_line"))
    if len(steps) < _FEWEST_KEPT:
        return make_unobservable(cell, "no_gradient_seen", "what is there before a backward pass is not known")
    about = {"steps": len(steps), "micro_batches": len(ranks[0].steps[0]["micros"]), "line": where}
    at = "; the backward is at {line}" * bool(where)
    if len({step["step"] for step in seen if step["is_gradient_stale"]}) >= _FEWEST_KEPT:
        text = "the backward pass adds to the gradient that the optimizer has used before"
        return fail(cell, "never_cleared", text + at, **about)
    if all(step["num_cleared"] and _is_of_last(step) and _has_parts(step) for step in seen):
        return fail(cell, "thrown_away", "the gradient is cleared between the micro-batches of an update" + at, **about)
    return succeed(cell, "it begins anew in {steps:plural step} looked at", **about)


def _has_parts(step: Fields) -> bool:
    """Return whether a step has several micro-batches, each of rows of its own, that one line feeds to the model.

    Losses of the same rows, an attack on them and an inner loop are looked at by themselves.
    """
    lines = {str(micro.get("ids") and micro.get("line")) for micro in step["micros"]}
    return len(list_micros(step)) > 1 and len(lines) == 1 and "None" not in lines


def _is_of_last(step: Fields) -> bool:
    """Return whether the optimizer finds what the last backward pass has left or, where it is clipped, a multiple."""
    whole, left = step["gradient"]["head"], step["left"]
    scale = hypot(*whole) / (hypot(*left) or 1.0)
    return all(isclose(item, scale * other, rel_tol=_SAME) for item, other in zip(whole, left, strict=False))


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
    mine, its = _find_scale(ranks), _find_scale(base)
    counts = [len(item[0].steps[0]["micros"]) for item in (ranks, base)]
    where = format_line(ranks[0].steps[0].get("backward_line"))
    numbers = {
        "baseline": audit.baseline, "scale": mine, "scale_of_baseline": its, "at": f", at {where}" * bool(where),
        "micro_batches": counts[0], "micro_batches_of_baseline": counts[1],
    }  # fmt: skip
    is_known = bool(mine and its)
    if mine and its and max(mine / its, its / mine) > _LONGER:
        text = (
            "what an update of {micro_batches:plural micro-batch} per rank back-propagates adds up to {scale:.3g} "
            "times the mean of its losses, in {baseline}, of {micro_batches_of_baseline:plural micro-batch}, to "
            "{scale_of_baseline:.3g} times: its gradient is {ratio:.2f} times as long{at}{hint}"
        )
        return fail(cell, "other_scale", text, ratio=mine / its, hint=_hint(mine / its, len(ranks)), **numbers)
    if mine and _is_sum(ranks, mine):
        text = (
            "each of the {micro_batches} micro-batches of an update back-propagates its whole mean, so that the "
            "gradient is {scale:.3g} times the mean over them{at}"
        )
        return fail(cell, "undivided", text, **numbers)
    doubt = find_other_gradient(audit, cell, is_scale_known=is_known)
    if doubt is not None:
        ratio = doubt.numbers.get("ratio")
        if not is_known and isinstance(ratio, float):
            # As many times as long as there are times the ranks or micro-batches.
            multiples = {len(ranks) / len(base), counts[1] / counts[0]} - {1.0}
            longer = max(ratio, 1 / ratio)
            if any(abs(longer / max(multiple, 1 / multiple) - 1) <= _NEAR for multiple in multiples):
                return make_finding([doubt], doubt)
        return make_unobservable(cell, doubt.code, "{doubt}", doubt=doubt.sentence.removeprefix(f"{cell}: "))
    if not holds_whole_model(ranks, base):
        return make_unobservable(cell, "model_in_parts", "no rank holds a whole gradient")
    text = "no gradient that was looked at is longer than that of {baseline}"
    return succeed(cell, "the loss is multiplied alike in both, by {scale:.3g}" if is_known else text, **numbers)


def _find_scale(ranks: list[RankRecord]) -> float | None:
    """Return how many times the mean loss of its micro-batches an update learns from; None if it is not known.

    DDP takes the mean over the ranks; of any other exchange it is not known what it makes of a sum. Where there are
    other terms beside a loss of torch's, what multiplies that one says nothing of them.
    """
    if do_optimizers_take_turns(ranks):
        return None
    every: list[tuple[float | None, float, list[float]]] = []
    for step, micros in zip(ranks[0].steps, each_common_step(ranks), strict=False):
        weights = [weight for micro in micros if (weight := weigh(micro)) is not None and _is_whole(micro)]
        if len(weights) < len(micros):
            continue
        if len(ranks) > 1 and any(micro.get("wrapper") != "DistributedDataParallel" for micro in micros):
            return None
        if (rescaled := _find_rescaling(step)) == inf:
            return None
        factor = rescaled or 1.0
        multiples = [factor * micro["weights"][0][1] for micro in micros]
        every.append((rescaled, factor * sum(of_mean for _, of_mean in weights) / len(ranks), multiples))
    # What happens to a gradient after its backward is looked at in some steps alone.
    kept = [item for item in every if item[0] is not None] or every
    results, multiples = [result for _, result, _ in kept], list(chain(*(item for *_, item in kept)))
    if not _are_alike(results) and not _are_alike(multiples):
        return None
    scale = median(results)
    # What a gradient scaler multiplies a loss by, it divides the gradient by again, or a fused optimizer does.
    return scale if 0 < scale < _LARGE else None


def _are_alike(results: list[float]) -> bool:
    """Return whether most of several numbers are one number, or powers of two times it, as a gradient scaler makes."""
    usual = median(results) if len(results) >= _FEWEST_KEPT else 0.0
    powers = [log2(result / usual) for result in results if result / usual > 0] if usual else []
    return sum(abs(power - round(power)) < _SAME for power in powers) >= max(_FEWEST_KEPT, len(results) / 2)


def _find_rescaling(step: Fields) -> float | None:
    """Return how many times what the backward has left the optimizer finds, without clipping; inf: no such number.

    None where that was not looked at.
    """
    whole, left = (step.get("gradient") or {}).get("head") or [], step.get("left") or []
    lengths = hypot(*whole), hypot(*left)
    if len(whole) != len(left) or not all(0 < length < inf for length in lengths):
        return None
    clips = [min(1.0, (clip["limit"] or 0.0) / (clip["norm"] + 1e-6)) for clip in step.get("clips", [])]
    if len(clips) > 1 and min(clips) < 1:
        return inf
    ratio = lengths[0] / lengths[1]
    is_multiple = dist(whole, [ratio * item for item in left]) <= (_ALIKE - 1) * lengths[0]
    return ratio / min(clips, default=1.0) if is_multiple and min(clips, default=1.0) else inf


def _is_sum(ranks: list[RankRecord], scale: float) -> bool:
    """Return whether an update adds up the means of several batches of one loader, for which one line calls the model.

    Losses of several tasks, or of what is real and what is made, are called for by lines of their own.
    """
    number = median(len(step["micros"]) for step in ranks[0].steps)
    kinds = {
        (micro.get("loader"), micro.get("reduction"), str(micro.get("line") or ""), micro.get("module"))
        for _, micro in ranks[0].micros() if micro.get("num_losses")
    }  # fmt: skip
    if len(kinds) != 1 or _asks_again(ranks[0].steps):
        return False
    loader, reduction, line, _ = kinds.pop()
    is_accumulated = loader is not None and reduction == "mean" and line and number > 1
    return bool(is_accumulated) and abs(scale / number - 1) < _SAME


def _asks_again(steps: list[Fields]) -> bool:
    """Return whether steps take several gradients of the same rows: by a closure, or as where one looks ahead (SAM)."""
    fed = [str(rows) for micro in steps[0]["micros"] if (rows := micro.get("ids") or micro.get("rows"))]
    return len(set(fed)) < len(fed) or any(step.get("num_inside", 0) > 1 for step in steps)


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
    firsts = [micro for rank in (*ranks, *base) for micro in rank.steps[0]["micros"]]
    numbers = {"cell": cell, "baseline": audit.baseline}
    # Beside a loader's rows there are those that a generator has made of random numbers.
    is_made = len({micro.get("loader") is None for micro in firsts}) > 1
    is_random = is_made or any(micro.get(name) for micro in firsts for name in ("is_made", "is_random", "has_drawn"))
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
    usual = lengths[1] * sqrt(len(its["head"]) / (_SAMPLED * len(its["digests"])))
    if dist(mine["head"], its["head"]) <= _OTHER * max(hypot(*its["head"]), usual):
        return None
    text = "{cell}: its gradient is another one" + alike + ": other targets, another loss, or numbers drawn at random"
    return explain("other_gradient", text, **numbers)


def _hint(ratio: float, num_ranks: int) -> str:
    """Return what makes a gradient as many times as long as there are ranks, and how to mend it; else nothing."""
    text = (
        f", as where a mean over each rank's own targets is multiplied by the {num_ranks} ranks: transformers.Trainer "
        "does it for a model whose loss takes no number of items, unless average_tokens_across_devices is False"
    )
    return text * (abs(ratio / num_ranks - 1) <= _NEAR)


def _compare_lengths(*both: RankRecord) -> float:
    """Return how many times as long the first one's gradients are in the same steps, the median; 1 of few."""
    mine, its = ({step["step"]: _measure(step) for step in rank.steps} for rank in both)
    pairs = [(mine[step], its.get(step)) for step in mine]
    ratios = [result / other for result, other in pairs if result and other and isfinite(result) and isfinite(other)]
    return median(ratios) if len(ratios) >= _FEWEST_STEPS else 1.0


def _measure(step: Fields) -> float | None:
    """Return the norm that clipping was told, or else the length of the gradient's sampled elements."""
    clips = step.get("clips") or []
    if len(clips) == 1:
        return float(clips[0]["norm"])
    return None if clips else (step.get("gradient") or {}).get("l2")


def _begin_alike(*of_cells: list[RankRecord]) -> bool:
    """Return whether the first step has the same weights and the same rows, all ranks together."""
    every = [[list_rows(rank.steps[0]) or [] for rank in ranks] for ranks in of_cells]
    mine, its = ([get_start(ranks)[0], sorted(chain(*rows))] for ranks, rows in zip(of_cells, every, strict=True))
    return bool(mine[0]) and mine == its and all(rows for of_cell in every for rows in of_cell)


_NORMS_APART = 1e-3
_LARGE = 2.0**14
"""What scales the loss of 16 bits is as large; the length of some elements is no smaller part of the whole."""


@question(
    "Clipped by one norm",
    "Is the gradient clipped by the same norm on every rank?",
    WRONG,
    {
        "scaled": "The gradient is clipped before the loss's scale is taken out of it, at {line}",
        "other_norm": "Each rank clips by a norm of its own: {on_ranks} in step {step} of {cell}",
    },
    "clip after the exchange and after scaler.unscale_(optimizer), by the norm of the whole gradient (FSDP: its own "
    "clip_grad_norm_, or DTensors)",
)
def clipping(audit: Audit, cell: str) -> Finding | None:
    """Compare the norms that the clipping of torch was told, or worked out, step by step."""
    ranks, problems, num_compared, num_steps = audit.ranks(cell), [], 0, 0
    early = [step["step"] for rank in ranks for step in rank.steps if step.get("is_gradient_changed_early")]
    known = []
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        clips = [step.get("clips", []) for step in steps]
        if len(set(map(len, clips))) > 1:
            return make_unobservable(cell, "clips_differ_in_number", "the ranks clip a different number of times")
        num_steps += bool(clips[0])
        num_compared += len(clips[0])
        for of_ranks in zip(*clips, strict=True):
            norms = [rank["norm"] for rank in of_ranks]
            if max(norms) - min(norms) > _NORMS_APART * max(norms):
                where = format_line(of_ranks[0].get("line"))
                on_ranks = [f"{norm:.4g} on rank {rank}" for rank, norm in enumerate(norms[:4])]
                text = "{cell}: step {step} was clipped" + " at {line}" * bool(where) + " by the norm {on_ranks}"
                numbers = {"cell": cell, "step": steps[0]["step"], "line": where, "norms": norms, "on_ranks": on_ranks}
                problems.append(explain("other_norm", text, **numbers))
        # Where the optimizer finds the gradient as the backward pass has left it, nothing has clipped it.
        kept = [step.get("is_gradient_kept") for step in steps]
        if None not in kept:
            known.append(all(kept) or _is_summed(steps))
    if early and not problems:
        text = "in step {step} something may change the gradient before all of it is summed up over the ranks: between "
        text += "its micro-batches, or by a hook on a parameter or on DDP's exchange"
        return make_unobservable(cell, "changed_early", text, step=min(early))
    if not num_compared:
        if len(known) < _FEWEST_KEPT or not all(known):
            shares = [_measure_change(ranks), _measure_change(audit.ranks(audit.baseline))]
            if all(shares) and max(shares) <= min(shares) * _CHANGED_ALIKE:
                text = "what DDP has exchanged is changed by the script, alike on all ranks and in {baseline}"
                return succeed(cell, text, baseline=audit.baseline)
            text = "no clip_grad_norm_ was seen, and what changes the gradient before the optimizer's step is not known"
            return make_unobservable(cell, "no_clip_seen", text)
        text = (
            "nothing clips it: in {steps:plural step} looked at, all ranks together, the optimizer found the "
            "gradient as the backward pass had left it, or the sum or mean of that over the ranks"
        )
        return succeed(cell, text, steps=len(known) * len(ranks), compared=0)
    first, *others = map(sampled_digests, ranks)
    scaled = [step for step in ranks[0].steps if _was_clipped_scaled(step)]
    if len(scaled) >= _FEWEST_KEPT:
        text = (
            "in {steps:plural step} looked at, first in step {step}, at {line}, the optimizer finds far less than that"
        )
        line = format_line(scaled[0]["clips"][0]["line"])
        return fail(cell, "scaled", text, steps=len(scaled), step=scaled[0]["step"], line=line)
    differ = any(other[step] != first[step] for other in others for step in other if step in first)
    if problems and differ and holds_whole_model(ranks):
        return make_unobservable(cell, "models_differ", "every rank has a model of its own, and so a norm")
    text = (
        "{cell}: the norm was the same on all ranks, {compared:plural time} in {steps_compared:plural step} looked at"
    )
    return make_finding(problems, text, cell=cell, compared=num_compared, steps_compared=num_steps)


def _measure_change(ranks: Sequence[RankRecord]) -> float:
    """Return how long the gradient is that optimizers find, beside what DDP had left; 0 where ranks may find others."""
    results = []
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        if not steps[0].get("left"):
            continue
        wrappers = {micro.get("wrapper") for step in steps for micro in step["micros"]}
        of_ranks = [(step.get("left"), step.get("gradient")) for step in steps]
        is_exchanged = len(ranks) == 1 or wrappers == {"DistributedDataParallel"}
        if not is_exchanged or any(other != of_ranks[0] for other in of_ranks):
            return 0.0
        if length := hypot(*steps[0]["left"]):
            results.append(hypot(*steps[0]["gradient"]["head"]) / length)
    return median(results) if len(results) >= _FEWEST_KEPT else 0.0


def _was_clipped_scaled(step: Fields) -> bool:
    """Return whether what was clipped was divided later by what scales the loss of 16 bits."""
    scale = max((weight[1] for micro in list_micros(step) if (weight := weigh(micro))), default=0.0)
    divided = 1 / (_find_rescaling(step) or inf)
    # Of any other loss it is seen by what the gradient is divided by: a scaler's are powers of two.
    if divided and abs(log2(divided) - round(log2(divided))) < _SAME:
        scale = max(scale, divided)
    length = scale * step.get("gradient", {}).get("l2", 0.0)
    limits = [min(clip["norm"], clip["limit"] or 0.0) for clip in step.get("clips", [])]
    return scale >= _LARGE and any(0 < length <= _ALIKE * limit for limit in limits)


def _is_summed(steps: Sequence[Fields]) -> bool:
    """Return whether the script exchanges itself, and every optimizer finds the sum or mean of what backwards left."""
    if any(micro.get("wrapper") for step in steps for micro in step["micros"]):
        return False
    sums = [sum(of_ranks) for of_ranks in zip(*(step["left"] for step in steps), strict=False)]
    pairs = [pair for step in steps for pair in zip(step["gradient"]["head"], sums, strict=False)]
    return any(
        all(isclose(pair, whole / number, rel_tol=_SAME, abs_tol=1e-12) for pair, whole in pairs)
        for number in (1, len(steps))
    )


_MANY = 1.5
_LEAST = 0.4
"""Gradients may be exchanged in 16 bits."""


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
    steps = audit.ranks(cell)[0].steps
    unknown = {
        "model_in_parts": "how often a model in parts has to exchange is not known",
        "several_models": "several models are trained, and which backward is whose is not known",
        "several_gradients": "a step takes several gradients of the same rows",
        "no_record_of_exchanges": "the exchange is none of DDP's, and torch kept no record of its bytes",
        "some_are_frozen": "the exchange is none of DDP's, and may be of frozen parameters, too",
    }
    is_by_ddp = any(micro.get("wrapper") == "DistributedDataParallel" for step in steps for micro in step["micros"])
    # A value that is False is left out of the record.
    counted = [sum(bool(micro.get("is_synchronised")) for micro in step["micros"]) for step in steps] * is_by_ddp
    # Nobody has to exchange what the optimizer is given and is frozen.
    kinds = ("all_reduce", "allreduce", "allreduce_coalesced")
    rounds = list_shares(audit.ranks(cell)[0], kinds, "trainable_bytes")
    has_frozen = steps[0].get("trainable_bytes") != steps[0].get("parameter_bytes")
    are = (
        not holds_whole_model(audit.ranks(cell)),
        len({micro.get("module") for step in steps for micro in step["micros"]}) > 1
        or do_optimizers_take_turns(audit.ranks(cell)),
        _asks_again(steps),
        not counted and not rounds,
        has_frozen and not counted and median(rounds or [0.0]) >= _MANY,
    )
    for code, text in compress(unknown.items(), are):
        return make_unobservable(cell, code, text)
    exchanged, number = median(rounds) if rounds else None, median(counted or rounds)
    many = [step["step"] for step, item in zip(steps, counted, strict=False) if item >= _MANY]
    numbers = {
        "micro_batches": round(median(len(step["micros"]) for step in steps)), "exchanges": number,
        "gradients_exchanged": exchanged, "steps_of_more": len(many), "steps": len(steps),
        "first": many[0] if many else None, "line": format_line(steps[0].get("backward_line")),
    }  # fmt: skip
    bytes_ = " ({gradients_exchanged:.2f} times the gradient's bytes)" * bool(rounds)
    # Of the steps; one whose update a gradient scaler leaves out has the micro-batches of two.
    if numbers["micro_batches"] != 1 and (number >= _MANY or len(many) > _SHARE * len(steps)):
        often = "{exchanges:g} exchanges per update"
        if number < _MANY:
            often = "in {steps_of_more:,} of {steps:,} steps, first in step {first:,}, more than one exchange"
        text = f"{often} of {{micro_batches}} micro-batches{bytes_}, one is needed"
        return fail(cell, "too_many_exchanges", text + "; the backward is at {line}" * bool(numbers["line"]), **numbers)
    if exchanged is not None and exchanged < _LEAST:
        text = "the ranks exchange {gradients_exchanged:.2f} times the gradient's bytes by all-reduce"
        return make_unobservable(cell, "too_few_bytes", text, gradients_exchanged=exchanged)
    text = "{exchanges:g} exchange per update of {micro_batches:plural micro-batch}" + bytes_
    return succeed(cell, text, **numbers)
