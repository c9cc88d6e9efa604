"""Does a step of the cell compute what one of the baseline computes? All but how its rows are spread over ranks."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import mean, median
from typing import Any

from ddp_audit.evidence import (
    count_samples,
    do_samples_lead,
    holds_whole_model,
    make_unobservable,
)
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import Fields, RankRecord

NAME = "Same step as the baseline"
QUESTION = "Does a step have the baseline's precision, optimizer, clipping and targets, and do the same tensors learn?"
CLASS = "unlike cells"
SAYS = {
    "other_step": "The cells compute other steps: in {cell} {other}",
}
REMEDY = "let nothing depend on the number of ranks but which rows a rank is fed, and how the model is wrapped"

_LEARNING_RATES = ("lr", "initial_lr", "max_lr")
"""Another question asks for those."""
_OF_TORCH = frozenset({
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SGD", "SparseAdam",
})  # fmt: skip
"""Of a wrapper around one the options are not known."""
_LEARNING = "tensors with a gradient"
_DRAWS, _DRAWS_NONE = "draws random numbers in its forward pass", "draws no random numbers in its forward pass"
_DRAWN_BY = "random numbers of "
_OFTEN = 0.5
"""What is drawn in fewer of the forward passes, as when layers are made at the first one, is no habit of the model."""
_APART = 0.01
_OTHER_TARGETS, _FEWEST_SAMPLES = 0.25, 64
"""What is masked at random, or long and short rows in another order, differs by less over so many samples."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare with the baseline's what its steps computed with, as far as it was seen of both."""
    mine, base = (_collect_facts(audit, name) for name in (cell, audit.baseline))
    both = [name for name in mine if name in base]
    other = [_tell_difference(name, mine, base, audit.baseline) for name in both if mine[name] != base[name]]
    other += _find_other_targets(audit, cell)
    samples = [count_samples(audit.ranks(name)) for name in (cell, audit.baseline)]
    grown = audit.request.cells[cell] / audit.request.cells[audit.baseline] if audit.request.is_weak else 1.0
    if other and not _are_batches_equal(samples[0], samples[1], grown):
        return make_unobservable(
            cell, "other_step_at_other_batch", "{other}: at another batch that may be meant", other="; ".join(other)
        )
    varies = any("," in facts.get(_LEARNING, "") for facts in (mine, base))
    if varies and other == [_tell_difference(_LEARNING, mine, base, audit.baseline)]:
        return make_unobservable(
            cell,
            "layers_dropped",
            "{other}: where layers are dropped at random, DDP fills in those of all ranks",
            other=other[0],
        )
    doubt = _find_smaller_micro_batches(audit, cell)
    if doubt and not other:
        return make_unobservable(cell, "other_micro_batches", "{doubt}", doubt=doubt)
    return make_finding(
        [explain("other_step", "{cell}: {other}", cell=cell, other="; ".join(other))] * bool(other),
        "{cell}: as in {baseline} are {same}",
            cell=cell, baseline=audit.baseline, same=both, compared=len(both),
    )  # fmt: skip


def _tell_difference(name: str, mine: dict[str, str], base: dict[str, str], baseline: str) -> str:
    if mine.get(name) in (_DRAWS, _DRAWS_NONE):
        does, its = ("draws", "does not") if mine[name] == _DRAWS else ("draws no", "does")
        return f"{name.removeprefix(_DRAWN_BY)} {does} random numbers in its forward pass, {baseline}'s {its}"
    return f"{name} {mine.get(name)}, {baseline} {base.get(name)}"


def _collect_facts(audit: Audit, cell: str) -> dict[str, str]:
    """Return what was seen of the cell's steps: name -> value, those with several values with all of them."""
    ranks = audit.ranks(cell)
    first, is_whole = ranks[0].steps[0], holds_whole_model(ranks)
    found = {
        name: ", ".join(sorted({str(micro[name]) for rank in ranks for _, micro in rank.micros() if micro.get(name)}))
        # What is sharded may be kept in another precision than it computes in.
        for name in ("attention", *["precision"] * is_whole)
    }
    found["optimizer"] = optimizer = str(first.get("optimizer", ""))
    if optimizer in _OF_TORCH:
        options = first.get("optimizer_options", {}).items()
        found |= {f"{optimizer}'s {name}": _tell(value) for name, value in options if name not in _LEARNING_RATES}
    else:
        del found["optimizer"]
    found |= {f"torch's {name}": str(value) for name, value in first.get("torch_settings", {}).items()}
    modes = {str(micro["is_training"]) for rank in ranks for micro in _list_read(rank)}
    found["training mode"] = ", ".join(sorted(modes))
    found |= _list_draws(ranks)
    if is_whole:
        gradients = [step["gradient"] for rank in ranks for step in rank.steps if step.get("gradient")]
        learning = {len(gradient.get("digests", [])) for gradient in gradients}
        found[_LEARNING] = ", ".join(map(str, sorted(learning - {0})))
        # Of a norm that is no number nothing is kept: another question asks for those.
        if all(isfinite(micro.get("loss") or 0.0) for rank in ranks for _, micro in rank.micros()):
            clips = [clip for rank in ranks for step in rank.steps for clip in step.get("clips", [])]
            limits = {_tell(clip["limit"]) for clip in clips if clip.get("limit") is not None}
            found["clipping"] = ", ".join(sorted(limits)) or "none"
    return {name: value for name, value in found.items() if value}


def _list_draws(ranks: Sequence[RankRecord]) -> dict[str, str]:
    """Return whether each model draws random numbers, by torch's generators; without those that do now and then."""
    seen: dict[str, list[bool]] = defaultdict(list)
    for rank in ranks:
        for micro in _list_read(rank):
            if micro.get("has_drawn") is not None:
                seen[str(micro.get("computed"))].append(bool(micro["has_drawn"]))
    shares = {name: mean(drawn) for name, drawn in seen.items()}
    return {
        f"{_DRAWN_BY}{name}": _DRAWS if share else _DRAWS_NONE
        for name, share in shares.items()
        if not 0 < share < _OFTEN
    }


def _tell(value: Any) -> str:
    """Return a number in one way, whichever type it has: 0 and 0.0 are one option; several with all of them."""
    if isinstance(value, list):
        return " and ".join(map(_tell, value))
    if value is None:
        return "unset"
    return str(value) if isinstance(value, bool) else f"{value:g}"


def _list_read(rank: RankRecord) -> Iterator[Fields]:
    """Yield the micro-batches of which it is known whether the model was in training mode."""
    return (micro for _, micro in rank.micros() if micro.get("is_training") is not None)


def _are_batches_equal(mine: list[int] | None, base: list[int] | None, grown: float) -> bool:
    return mine is not None and base is not None and abs(median(mine) / median(base) / grown - 1) <= _APART


def _find_other_targets(audit: Audit, cell: str) -> list[str]:
    """Return how many more or fewer targets the loss of a sample has than in the baseline; nothing where few."""
    shares = []
    for name in (cell, audit.baseline):
        micros = [micro for rank in audit.ranks(name) for _, micro in rank.micros() if micro.get("num_losses")]
        counted = [micro for micro in micros if micro.get("num_targets") is not None and micro["num_losses"] == 1]
        num_samples = sum(micro.get("num_samples", 0) for micro in counted)
        if len(counted) < len(micros) or num_samples < _FEWEST_SAMPLES:
            return []
        shares.append(sum(micro["num_targets"] for micro in counted) / num_samples)
    mine, base = shares
    if abs(mine - base) <= _OTHER_TARGETS * base:
        return []
    return [f"targets per sample {mine:.1f}, {audit.baseline} {base:.1f}"]


def _find_smaller_micro_batches(audit: Audit, cell: str) -> str:
    """Return by how much the baseline feeds fewer samples at once; empty if not, or where shards leave more memory."""
    if not holds_whole_model(audit.ranks(cell)) or not do_samples_lead(audit.ranks(cell), audit.ranks(audit.baseline)):
        return ""
    mine, base = (
        median([micro.get("num_samples", 0) for rank in audit.ranks(name) for _, micro in rank.micros()])
        for name in (cell, audit.baseline)
    )
    if base >= mine * (1 - _APART):
        return ""
    return (
        f"it is fed {mine:g} samples at once, and {audit.baseline} {base:g}, though a rank of both has as much memory: "
        "what more samples at once bring is in the speedup"
    )
