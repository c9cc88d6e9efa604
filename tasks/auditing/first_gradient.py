"""Is the gradient of the first step the baseline's, where its weights and its rows are?"""

from math import isfinite, sqrt
from statistics import median

from tasks.auditing.evidence import holds_whole_model, list_rows
from tasks.auditing.launched import Audit
from tasks.auditing.rank_record import Fields, RankRecord

_LONGER = 1.25
_LONGER_OF_OTHER_ROWS, _FEWEST_STEPS = 1.6, 4
_NEAR = 0.15
_OTHER = 0.1
"""Of its length, at most."""
_SAMPLED = 64
"""Elements of each tensor that a digest is of, at most."""


def find_other_gradient(audit: Audit, cell: str) -> str:
    """Return how the gradient of the first step differs from the baseline's; empty where it does not, or is not known.

    It is what the optimizer finds: after the exchange and after clipping. Where a forward pass draws numbers at random,
    as dropout does, or the first step has other rows, its length is compared over several steps.
    """
    ranks, base = audit.ranks(cell), audit.ranks(audit.baseline)
    mine, its = ranks[0].steps[0].get("gradient") or {}, base[0].steps[0].get("gradient") or {}
    if not (holds_whole_model(ranks) and holds_whole_model(base)):
        return ""
    if len(mine.get("digests", [])) != len(its.get("digests", [])):
        return ""
    is_random = any(
        micro.get("is_random") or micro.get("has_drawn")
        for rank in (*ranks, *base)
        for micro in rank.steps[0]["micros"]
    )
    if is_random or not _begin_alike(ranks, base):
        ratio = _compare_lengths(ranks[0], base[0])
        if max(ratio, 1 / ratio) <= _LONGER_OF_OTHER_ROWS:
            return ""
        longer = f"its gradients are {ratio:.2f} times as long as those of {audit.baseline} in most steps looked at"
        return f"{longer}{_hint(ratio, len(ranks))}"
    lengths = [gradient.get("l2") or 0.0 for gradient in (mine, its)]
    if not all(length > 0 and isfinite(length) for length in lengths):
        return ""
    told = f"though the first step begins with {audit.baseline}'s weights and learns from its rows"
    ratio = lengths[0] / lengths[1]
    if max(ratio, 1 / ratio) > _LONGER:
        return f"its gradient is {ratio:.2f} times as long, {told}{_hint(ratio, len(ranks))}"
    if _compare_heads(mine, its, lengths[1]) <= _OTHER:
        return ""
    return f"its gradient is another one, {told}: other targets, another loss, or numbers drawn at random"


def _hint(ratio: float, num_ranks: int) -> str:
    """Return what makes a gradient as many times as long as there are ranks, and how to mend it; else nothing."""
    if abs(ratio / num_ranks - 1) > _NEAR:
        return ""
    return (
        f", as where a mean over each rank's own targets is multiplied by the {num_ranks} ranks: transformers.Trainer "
        "does it for a model whose loss takes no number of items, unless average_tokens_across_devices is False"
    )


def _compare_heads(mine: Fields, its: Fields, length: float) -> float:
    """Return the share of the baseline's by which the first sampled elements differ."""
    pairs = list(zip(mine["head"], its["head"], strict=False))
    usual = length * sqrt(len(pairs) / (_SAMPLED * len(its["digests"])))
    apart = sqrt(sum((one - other) ** 2 for one, other in pairs))
    return apart / max(sqrt(sum(other**2 for _, other in pairs)), usual)


def _compare_lengths(rank: RankRecord, base: RankRecord) -> float:
    """Return how many times as long its gradients are as the baseline's in the same steps, the median; 1 of few."""
    mine, its = ({one["step"]: (one.get("gradient") or {}).get("l2") for one in it.steps} for it in (rank, base))
    found = [(mine[step], its.get(step)) for step in mine]
    ratios = [one / other for one, other in found if one and other and isfinite(one) and isfinite(other)]
    return median(ratios) if len(ratios) >= _FEWEST_STEPS else 1.0


def _begin_alike(ranks: list[RankRecord], base: list[RankRecord]) -> bool:
    """Return whether the first step has the same weights and the same rows, all ranks together."""
    starts = [(one[0].steps[0].get("start") or {}).get("digests") for one in (ranks, base)]
    rows = [_list_first_rows(one) for one in (ranks, base)]
    return bool(starts[0] and rows[0]) and starts[0] == starts[1] and rows[0] == rows[1]


def _list_first_rows(ranks: list[RankRecord]) -> list[tuple[str, str]]:
    found = [list_rows(rank.steps[0]) for rank in ranks]
    return [] if None in found else sorted(row for rows in found for row in rows or [])
