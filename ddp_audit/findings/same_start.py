"""Do all cells begin with the same weights?"""

from ddp_audit.evidence import holds_whole_model, make_unobservable
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain

NAME = "Same weights at the start"
QUESTION = "Does the first step begin with the baseline's weights?"
CLASS = "unlike cells"
UNSEEDED = "unseeded"
SAYS = {
    UNSEEDED: "Nothing seeds the script: every launch starts from weights of its own",
    "other_weights": "{cell} starts from other weights: {differing} of {tensors} tensors differ from {baseline}'s",
}
REMEDY = "load the same checkpoint, or call torch.manual_seed with the same number before the model is made"

_MOST_SEED = 1 << 32
"""A larger one has torch drawn itself, where nobody gave it one."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare digests of the parameters before the first step."""
    for name in (cell, audit.baseline):
        if not holds_whole_model(audit.ranks(name)):
            return make_unobservable(cell, "model_in_parts", "no rank of {of_cell} holds the whole model", of_cell=name)
    mine, base = ((audit.ranks(name)[0].steps[0].get("start") or {}).get("digests") for name in (cell, audit.baseline))
    if not mine or not base or len(mine) != len(base):
        return make_unobservable(
            cell,
            "other_parameters",
            "its optimizer has other parameters than that of {baseline}",
            baseline=audit.baseline,
        )
    differing = sum(one != other for one, other in zip(mine, base, strict=True))
    which = "{differing} of {tensors} tensors differ from" if differing else "all {tensors} tensors are"
    seeds = {name: audit.ranks(name)[0].steps[0].get("seed") or 0 for name in (cell, audit.baseline)}
    is_unseeded = min(seeds.values()) > _MOST_SEED and len(set(seeds.values())) > 1
    told = explain(
        (UNSEEDED if is_unseeded else "other_weights") if differing else "passed",
        "{cell}: " + which + " {baseline}'s before the first step",
        cell=cell, differing=differing, tensors=len(mine), baseline=audit.baseline,
    )  # fmt: skip
    return make_finding([told] * bool(differing), told)
