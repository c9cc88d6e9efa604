"""Is the baseline of one rank the plain module?"""

from ddp_audit.launched import Audit, Launched
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import tell_line

NAME = "Baseline is the plain module"
QUESTION = "Does the baseline of one rank train without a wrapper, which costs time that no single process needs?"
CLASS = "hygiene"
SAYS = {
    "wrapped": "The baseline is no plain training: {wrapper} wraps its model",
}
REMEDY = "wrap the model only if world_size > 1"


def find(audit: Audit, cell: str) -> Finding | None:
    """Look for a wrapper around the model of a single rank."""
    first = audit.ranks(cell)[0].steps[0]
    micro = first["micros"][0]
    wrapper, where = micro.get("wrapper", ""), tell_line(micro.get("line"))
    problem = explain(
        "wrapped",
        "{cell}: one rank, and its model is wrapped by {wrapper}" + " (called at {line})" * bool(where)
        + "; started by python alone it does not train" * bool(audit.first(cell).fails_alone),
        cell=cell, wrapper=wrapper, line=where,
    )  # fmt: skip
    return make_finding(
        [problem] * bool(wrapper),
        "{cell}: {model} is called as it is{start}",
            cell=cell, model=micro.get("model") or "the model", start=_tell_start(audit, cell),
    )  # fmt: skip


def is_wrapped(launched: Launched) -> bool:
    """Return whether the model of a single rank is wrapped: some scripts do so because torchrun starts them."""
    steps = launched.ranks[0].steps if len(launched.ranks) == 1 else []
    return bool(steps and steps[0]["micros"][0].get("wrapper"))


def _tell_start(audit: Audit, cell: str) -> str:
    if not audit.first(cell).is_alone:
        return ""
    return "; python started it, since it is wrapped where torchrun does"
