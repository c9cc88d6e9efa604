"""Is the gradient exchanged once per update, or for every micro-batch?"""

from statistics import median

from ddp_audit.evidence import holds_whole_model, make_unobservable
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_failed_finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import tell_line

NAME = "Exchanged once per update"
QUESTION = "Is the gradient exchanged once per optimizer step, whatever the number of micro-batches?"
CLASS = "hygiene"
SAYS = {
    "too_many_exchanges": "The gradient is exchanged {exchanges:g} times per update of {cell}, where once is enough",
}
REMEDY = "wrap forward and backward of all but the last micro-batch in `with model.no_sync():`"

_MANY = 1.5
_SHARE = 0.1
"""Of the steps; one whose update a gradient scaler leaves out has the micro-batches of two."""
_LEAST = 0.4
"""Gradients may be exchanged in 16 bits."""
_KINDS = ("all_reduce", "allreduce", "allreduce_coalesced")


def find(audit: Audit, cell: str) -> Finding | None:
    """Count the exchanges that DDP was asked for, and the bytes that torch's process groups were given."""
    rank = audit.ranks(cell)[0]
    if not holds_whole_model(audit.ranks(cell)):
        return make_unobservable(cell, "model_in_parts", "how often a model in parts has to exchange is not known")
    if len({micro.get("module") for _, micro in rank.micros()}) > 1:
        return make_unobservable(
            cell, "several_models", "several models are trained, and which backward is whose is not known"
        )
    if any(step.get("num_inside", 0) > 1 for step in rank.steps):
        return make_unobservable(cell, "several_gradients", "the optimizer itself asks for several gradients per step")
    per_step = [_count_synchronised(step) for step in rank.steps]
    counted = [one for one in per_step if one is not None]
    size = rank.steps[0].get("parameter_bytes")
    found = [
        sum(step["traffic"].get(kind, [0, 0])[1] for kind in _KINDS) / size
        for step in rank.steps[1:]
        if step.get("traffic") is not None and size
    ]
    rounds = median(found) if found else None
    if not counted and rounds is None:
        return make_unobservable(
            cell, "no_record_of_exchanges", "the exchange is none of DDP's, and torch kept no record of its bytes"
        )
    num_micros = round(median(len(step["micros"]) for step in rank.steps))
    number = median(counted) if counted else rounds
    assert number is not None
    told = "" if rounds is None else " ({gradients_exchanged:.2f} times the gradient's bytes)"
    many = [step["step"] for step, one in zip(rank.steps, per_step, strict=True) if (one or 0) >= _MANY]
    numbers = {
        "cell": cell, "micro_batches": num_micros, "exchanges": number, "gradients_exchanged": rounds,
        "steps_of_more": len(many), "steps": len(rank.steps),
    }  # fmt: skip
    if num_micros > 1 and (number >= _MANY or len(many) > _SHARE * len(rank.steps)):
        where = tell_line(rank.steps[0].get("backward_line"))
        often = "{exchanges:g} exchanges per update"
        if number < _MANY:
            often = "in {steps_of_more:,} of {steps:,} steps, first in step {first:,}, more than one exchange"
        return make_failed_finding(
            explain(
                "too_many_exchanges",
                "{cell}: " + often + " of {micro_batches} micro-batches" + told + ", one is needed"
                + "; the backward is at {line}" * bool(where),
                **numbers, first=many[0] if many else None, line=where,
            )
        )  # fmt: skip
    if rounds is not None and rounds < _LEAST:
        return make_unobservable(
            cell,
            "too_few_bytes",
            "the ranks exchange {gradients_exchanged:.2f} times the gradient's bytes by all-reduce",
            gradients_exchanged=rounds,
        )
    return make_finding(
        [],
        "{cell}: {exchanges:g} exchange per update of {micro_batches:plural micro-batch}" + told,
        **numbers,
    )


def _count_synchronised(step: dict[str, object]) -> int | None:
    micros = step["micros"]
    assert isinstance(micros, list)
    # A value that is False is left out of the record.
    if not any(micro.get("wrapper") == "DistributedDataParallel" for micro in micros):
        return None
    return sum(bool(micro.get("is_synchronised")) for micro in micros)
