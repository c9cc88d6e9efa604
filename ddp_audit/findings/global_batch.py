"""Does every cell make the same updates: as many samples each, at the same learning rate?"""

from dataclasses import replace
from statistics import median

from ddp_audit.evidence import count_samples, do_samples_lead, make_unobservable
from ddp_audit.launched import Audit
from ddp_audit.process import wording
from ddp_audit.process.findings import Finding, make_failed_finding, make_finding
from ddp_audit.process.wording import explain

NAME = "Same global batch"
QUESTION = "Does an optimizer step learn from as many samples as the baseline's, at the same learning rate?"
CLASS = "unlike cells"
SAYS = {
    "other_share": "A rank of {cell} is fed {share:g} samples per step, one of {baseline} {share_of_baseline:g}",
    "other_batch": "A step of {cell} learns from {samples_per_step:g} samples, one of {baseline} from "
    "{samples_per_step_of_baseline:g}",
    "other_rate": "The learning rate of {cell} is {rate:g}, that of {baseline} {baseline_rate:g}",
}
REMEDY = (
    "divide the batch size per rank by the number of ranks, so that the global batch stays what it was: "
    "{rank_share:32} in SCRIPT stands for 32 divided so; SCALING=weak asks for the throughput of a batch that grows"
)

_APART = 0.01
_SHARE = 0.1
"""Of the steps."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare samples per step and learning rates with the baseline's."""
    mine, base = (count_samples(audit.ranks(name)) for name in (cell, audit.baseline))
    if mine is None or base is None or not do_samples_lead(audit.ranks(cell), audit.ranks(audit.baseline)):
        return make_unobservable(cell, "samples_unknown", "how many samples a step learns from is not known")
    batch, of_base = median(mine), median(base)
    rate, base_rate = (_find_rate(audit, name) for name in (cell, audit.baseline))
    numbers = {
        "baseline": audit.baseline,
        "samples_per_step": batch,
        "samples_per_step_of_baseline": of_base,
        "rate": rate,
        "baseline_rate": base_rate,
    }
    if audit.request.is_weak:
        shares = [number / audit.request.cells[name] for number, name in ((batch, cell), (of_base, audit.baseline))]
        told = explain(
            "passed", "{cell} learns from {share:g} samples per rank and step, {baseline} from {share_of_baseline:g}",
            cell=cell, baseline=audit.baseline, share=shares[0], share_of_baseline=shares[1],
        )  # fmt: skip
        return make_finding([replace(told, code="other_share")] * (abs(shares[0] / shares[1] - 1) > _APART), told)
    samples = "learns from {samples_per_step:g} samples per step, {baseline} from {samples_per_step_of_baseline:g}"
    if abs(batch / of_base - 1) > _APART:
        if rate is None or base_rate is None or abs(rate / base_rate - 1) > _APART:
            return make_unobservable(
                cell,
                "other_batch_and_rate",
                f"it {samples}, at another learning rate: time to the same quality would tell",
                **numbers,
            )
        found = make_failed_finding(
            explain(
                "other_batch",
                "{cell} " + samples + ", at the same learning rate of {rate:g}: other updates, and fewer of them",
                cell=cell,
                **numbers,
            )
        )
        figure = (
            f"{cell} makes {wording.format_ratio(of_base / batch)} as many updates of the same data: what it gains per "
            "epoch is throughput (weak scaling), and no shorter way to the same model"
        )
        return replace(found, true_figure=figure)
    problems = []
    if rate is not None and base_rate is not None and abs(rate - base_rate) > _APART * base_rate:
        problems = [
            explain(
                "other_rate",
                "{cell}: the highest learning rate is {rate:g}, {baseline}'s {baseline_rate:g}, at the same batch",
                cell=cell,
                **numbers,
            )
        ]
    elif other := _find_other_rates(audit, cell):
        return make_unobservable(
            cell,
            "other_rates",
            f"it {samples}, and the highest learning rate is the same, but not that of {{other}}",
            **numbers,
            other=other,
        )
    return make_finding(
        problems,
        "{cell} " + samples + f", at a learning rate of {rate or 0:g} at most",
        cell=cell,
        **numbers,
    )


def _find_other_rates(audit: Audit, cell: str) -> str:
    """Return in how many steps the learning rates are other than the baseline's; empty if in few."""
    pairs = list(zip(audit.ranks(cell)[0].steps, audit.ranks(audit.baseline)[0].steps, strict=False))
    other = [mine for mine, base in pairs if _differ(mine["lr"], base["lr"])]
    if len(other) <= _SHARE * len(pairs):
        return ""
    return f"{len(other):,} of {len(pairs):,} steps, first of step {other[0]['step']:,}"


def _differ(mine: list[float | None], base: list[float | None]) -> bool:
    known = [(one, of_base) for one, of_base in zip(mine, base, strict=False) if None not in (one, of_base)]
    return any(abs((one or 0) - (of_base or 0)) > _APART * abs(of_base or 0) for one, of_base in known)


def _find_rate(audit: Audit, cell: str) -> float | None:
    """Return the highest learning rate of the steps; None where it is not known."""
    rates = [rate for step in audit.ranks(cell)[0].steps for rate in step["lr"] if rate is not None]
    return max(rates) if rates and max(rates) > 0 else None
