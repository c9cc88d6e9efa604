"""Is the gradient as long as the baseline's, and where weights and rows are the same, the same one?"""

from math import isfinite, sqrt
from statistics import median

from ddp_audit.evidence import holds_whole_model, list_rows, make_unobservable, weigh
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import Reason, explain
from ddp_audit.rank_record import Fields, RankRecord, tell_line

NAME = "Same gradient as the baseline"
QUESTION = "Is the gradient of an update the mean over its samples in every cell, and not a multiple of it in some?"
CLASS = "wrong training"
SAYS = {
    "other_scale": "The gradient is another multiple of the mean in each cell: {scale:.3g} times in {cell}, "
    "{scale_of_baseline:.3g} times in {baseline}{at}",
    "other_length": "The gradient of {cell} is {ratio:.2f} times as long as that of {baseline}",
}
REMEDY = (
    "divide the loss by the number of micro-batches of an update (DDP then takes the mean over the ranks), so that it "
    "is a mean over all samples whatever the number of ranks"
)

_LONGER = 1.25
_LONGER_OF_OTHER_ROWS, _FEWEST_STEPS = 1.6, 4
_NEAR = 0.15
_OTHER = 0.1
"""Of its length, at most."""
_SAMPLED = 64
"""Elements of each tensor that a digest is of, at most."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare by what the loss is multiplied, then the first gradient, or the lengths of several."""
    ranks, base = audit.ranks(cell), audit.ranks(audit.baseline)
    scales = [_find_scale(one) for one in (ranks, base)]
    if (known := [one for one in scales if one is not None]) and len(known) == len(scales):
        mine, its = known
        if max(mine / its, its / mine) > _LONGER:
            steps = [audit.ranks(name)[0].steps[0] for name in (cell, audit.baseline)]
            where = tell_line(steps[0].get("backward_line"))
            return make_finding(
                [
                    explain(
                        "other_scale",
                        "{cell}: what an update of {micro_batches:plural micro-batch} per rank back-propagates adds up "
                        "to {scale:.3g} times the mean of its losses, in {baseline}, of "
                        "{micro_batches_of_baseline:plural micro-batch}, to {scale_of_baseline:.3g} times: its "
                        "gradient is {ratio:.2f} times as long{at}{hint}",
                        cell=cell,
                        baseline=audit.baseline,
                        scale=mine,
                        scale_of_baseline=its,
                        ratio=mine / its,
                        micro_batches=len(steps[0]["micros"]),
                        micro_batches_of_baseline=len(steps[1]["micros"]),
                        at=f", at {where}" if where else "",
                        hint=_hint(mine / its, len(audit.ranks(cell))),
                    )
                ],
                "",
            )
    doubt = find_other_gradient(audit, cell, is_scale_known=len(known) == len(scales))
    if doubt is not None and len(known) < len(scales) and _is_told_by_counts(doubt, audit, cell):
        return make_finding([doubt], doubt)
    if doubt is not None:
        return make_unobservable(cell, doubt.code, "{doubt}", doubt=doubt.sentence.removeprefix(f"{cell}: "))
    if not (holds_whole_model(ranks) and holds_whole_model(base)):
        return make_unobservable(cell, "model_in_parts", "no rank holds a whole gradient")
    told = (
        "the loss is multiplied alike in both, by {scale:.3g}"
        if len(known) == len(scales)
        else "no gradient that was looked at is longer than that of {baseline}"
    )
    return make_finding([], "{cell}: " + told, cell=cell, scale=scales[0], baseline=audit.baseline)


def _find_scale(ranks: list[RankRecord]) -> float | None:
    """Return how many times the mean loss of its micro-batches an update back-propagates; None if it is not known.

    DDP takes the mean over the ranks; of any other exchange it is not known what it makes of a sum.
    """
    is_alone = len(ranks) == 1
    found = []
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        micros = [micro for step in steps for micro in step["micros"]]
        weights = [weigh(micro) for micro in micros]
        if not all(one is not None for one in weights):
            continue
        if not is_alone and any(micro.get("wrapper") != "DistributedDataParallel" for micro in micros):
            return None
        scale = sum(of_mean for _, of_mean in filter(None, weights)) / len(ranks)
        found += [scale] * isfinite(scale)
    return median(found) if found else None


def _is_told_by_counts(doubt: Reason, audit: Audit, cell: str) -> bool:
    """Return whether a gradient is as many times as long as there are times the ranks or micro-batches."""
    ratio = doubt.numbers.get("ratio")
    if not isinstance(ratio, float):
        return False
    ranks, base = audit.ranks(cell), audit.ranks(audit.baseline)
    counts = [len(one[0].steps[0]["micros"]) for one in (ranks, base)]
    multiples = {len(ranks) / len(base), counts[1] / counts[0]} - {1.0}
    longer = max(ratio, 1 / ratio)
    return any(abs(longer / max(one, 1 / one) - 1) <= _NEAR for one in multiples)


def find_other_gradient(audit: Audit, cell: str, *, is_scale_known: bool = False) -> Reason | None:
    """Return how the gradient of the first step differs from the baseline's; None where it does not, or is not known.

    It is what the optimizer finds: after the exchange and after clipping. Where a forward pass draws numbers at random,
    as dropout does, or the first step has other rows, its length before clipping is compared over several steps,
    unless it is known that the loss is scaled alike.
    """
    ranks, base = audit.ranks(cell), audit.ranks(audit.baseline)
    mine, its = ranks[0].steps[0].get("gradient") or {}, base[0].steps[0].get("gradient") or {}
    if not (holds_whole_model(ranks) and holds_whole_model(base)):
        return None
    if len(mine.get("digests", [])) != len(its.get("digests", [])):
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
        return explain(
            "other_length",
            "{cell}: its gradients are {ratio:.2f} times as long as those of {baseline} in most steps looked at"
            + _hint(ratio, len(ranks)),
            ratio=ratio, **numbers,
        )  # fmt: skip
    lengths = [gradient.get("l2") or 0.0 for gradient in (mine, its)]
    if not all(length > 0 and isfinite(length) for length in lengths):
        return None
    told = ", though the first step begins with {baseline}'s weights and learns from its rows"
    ratio = lengths[0] / lengths[1]
    if max(ratio, 1 / ratio) > _LONGER:
        return explain(
            "other_length", "{cell}: its gradient is {ratio:.2f} times as long" + told + _hint(ratio, len(ranks)),
            ratio=ratio, **numbers,
        )  # fmt: skip
    pairs = list(zip(mine["head"], its["head"], strict=False))
    usual = lengths[1] * sqrt(len(pairs) / (_SAMPLED * len(its["digests"])))
    apart = sqrt(sum((one - other) ** 2 for one, other in pairs))
    if (apart / max(sqrt(sum(other**2 for _, other in pairs)), usual)) <= _OTHER:
        return None
    return explain(
        "other_gradient",
        "{cell}: its gradient is another one" + told + ": other targets, another loss, or numbers drawn at random",
        **numbers,
    )


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
    found = [(mine[step], its.get(step)) for step in mine]
    ratios = [one / other for one, other in found if one and other and isfinite(one) and isfinite(other)]
    return median(ratios) if len(ratios) >= _FEWEST_STEPS else 1.0


def _measure(step: Fields) -> float | None:
    """Return the norm that clipping was told, or else the length of the gradient's sampled elements."""
    clips = step.get("clips") or []
    if len(clips) == 1:
        return float(clips[0]["norm"])
    return None if clips else (step.get("gradient") or {}).get("l2")


def _begin_alike(ranks: list[RankRecord], base: list[RankRecord]) -> bool:
    """Return whether the first step has the same weights and the same rows, all ranks together."""
    starts = [(one[0].steps[0].get("start") or {}).get("digests") for one in (ranks, base)]
    rows = [_list_first_rows(one) for one in (ranks, base)]
    return bool(starts[0] and rows[0]) and starts[0] == starts[1] and rows[0] == rows[1]


def _list_first_rows(ranks: list[RankRecord]) -> list[tuple[str, str]]:
    found = [list_rows(rank.steps[0]) for rank in ranks]
    return [] if None in found else sorted(row for rows in found for row in rows or [])
