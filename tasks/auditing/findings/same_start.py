"""Do all cells begin with the same weights?"""

from tasks.auditing.evidence import find_nothing_seen, holds_whole_model, make_unobservable
from tasks.auditing.launched import Audit
from tasks.records.gate import Finding, make_finding

NAME = "Same weights at the start"
QUESTION = "Does the first step begin with the baseline's weights?"
REMEDY = "load the same checkpoint, or call torch.manual_seed with the same number before the model is made"


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare digests of the parameters before the first step."""
    if cell == audit.baseline:
        return None
    if nothing := find_nothing_seen(audit, cell) or find_nothing_seen(audit, audit.baseline):
        return nothing
    for name in (cell, audit.baseline):
        if not holds_whole_model(audit.ranks(name)):
            return make_unobservable(cell, f"no rank of {name} holds the whole model")
    mine, base = ((audit.ranks(name)[0].steps[0].get("start") or {}).get("digests") for name in (cell, audit.baseline))
    if not mine or not base or len(mine) != len(base):
        return make_unobservable(cell, f"its optimizer has other parameters than that of {audit.baseline}")
    differing = sum(one != other for one, other in zip(mine, base, strict=True))
    return make_finding(
        [f"{cell}: {differing} of {len(mine)} tensors differ from {audit.baseline}'s before the first step"]
        * bool(differing),
        otherwise=f"{cell}: all {len(mine)} tensors are {audit.baseline}'s before the first step",
        numbers={"tensors": len(mine), "differing": differing},
    )
