"""Is the gradient exchanged once per update, or for every micro-batch?"""

from statistics import median

from tasks.auditing.evidence import find_nothing_seen, holds_whole_model, make_unobservable
from tasks.auditing.launched import Audit
from tasks.auditing.rank_record import RankRecord, tell_line
from tasks.process import wording
from tasks.records.gate import Finding, make_finding

NAME = "Exchanged once per update"
QUESTION = "Is the gradient exchanged once per optimizer step, whatever the number of micro-batches?"
REMEDY = "wrap forward and backward of all but the last micro-batch in `with model.no_sync():`"

_MANY = 1.5
_SHARE = 0.1
"""Of the steps; one whose update a gradient scaler leaves out has the micro-batches of two."""
_LEAST = 0.4
"""Gradients may be exchanged in 16 bits."""
_KINDS = ("all_reduce", "allreduce", "allreduce_coalesced")


def find(audit: Audit, cell: str) -> Finding | None:
    """Count the exchanges that DDP was asked for, and the bytes that torch's process groups were given."""
    if audit.request.cells[cell] == 1:
        return None
    if nothing := find_nothing_seen(audit, cell):
        return nothing
    rank = audit.ranks(cell)[0]
    if not holds_whole_model(audit.ranks(cell)):
        return make_unobservable(cell, "how often a model in parts has to exchange is not known")
    if len({micro.get("module") for _, micro in rank.micros()}) > 1:
        return make_unobservable(cell, "several models are trained, and which backward is whose is not known")
    if any(step.get("num_inside", 0) > 1 for step in rank.steps):
        return make_unobservable(cell, "the optimizer itself asks for several gradients per step")
    per_step = [_count_synchronised(step) for step in rank.steps]
    counted = [one for one in per_step if one is not None]
    rounds = _measure_rounds(rank)
    if not counted and rounds is None:
        return make_unobservable(cell, "the exchange is none of DDP's, and torch kept no record of its bytes")
    num_micros = round(median(len(step["micros"]) for step in rank.steps))
    number = median(counted) if counted else rounds
    assert number is not None
    told = "" if rounds is None else f" ({rounds:.2f} times the gradient's bytes)"
    many = [step["step"] for step, one in zip(rank.steps, per_step, strict=True) if (one or 0) >= _MANY]
    numbers = {
        "micro_batches": num_micros, "exchanges": number, "gradients_exchanged": rounds, "steps_of_more": len(many)
    }  # fmt: skip
    if num_micros > 1 and (number >= _MANY or len(many) > _SHARE * len(rank.steps)):
        where = tell_line(rank.steps[0].get("backward_line"))
        often = f"{number:g} exchanges per update"
        if number < _MANY:
            often = f"in {len(many):,} of {len(rank.steps):,} steps, first in step {many[0]:,}, more than one exchange"
        return make_finding(
            [
                f"{cell}: {often} of {num_micros} micro-batches{told}, one is "
                f"needed{f'; the backward is at {where}' * bool(where)}"
            ],
            otherwise="", numbers=numbers,
        )  # fmt: skip
    if rounds is not None and rounds < _LEAST:
        return make_unobservable(cell, f"the ranks exchange {rounds:.2f} times the gradient's bytes by all-reduce")
    return make_finding(
        [],
        otherwise=f"{cell}: {number:g} exchange per update of {wording.format_plural(num_micros, 'micro-batch')}{told}",
        numbers=numbers,
    )


def _count_synchronised(step: dict[str, object]) -> int | None:
    micros = step["micros"]
    assert isinstance(micros, list)
    # A value that is False is left out of the record.
    if not any(micro.get("wrapper") == "DistributedDataParallel" for micro in micros):
        return None
    return sum(bool(micro.get("is_synchronised")) for micro in micros)


def _measure_rounds(rank: RankRecord) -> float | None:
    """Return how many times the gradient's bytes went into a step's all-reduces; None where it was not recorded."""
    size = rank.steps[0].get("parameter_bytes")
    found = [
        sum(step["traffic"].get(kind, [0, 0])[1] for kind in _KINDS) / size
        for step in rank.steps[1:]
        if step.get("traffic") is not None and size
    ]
    return median(found) if found else None
