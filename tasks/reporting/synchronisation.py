"""Was the whole gradient exchanged once per optimizer step? What the ranks counted, against what DDP's buckets need."""

from collections.abc import Mapping
from typing import Any

from tasks.reporting import wording
from tasks.reporting.gate import Finding, Numbers, finding
from tasks.reporting.outputs import Outputs, RunOutputs, SegmentOutputs

_BYTES_PER_GRADIENT = 4
_SHARE_SENT = {"none": 1.0, "bf16": 0.5, "fp16": 0.5}
"""Of the gradient's fp32 bytes, by the strategy's option gradient_hook."""


def bytes_per_exchange(gradient_bytes: int, options: Mapping[str, Any], *, is_exact: bool) -> tuple[int, int]:
    """Return the least and the most bytes that a rank gives to one exchange of the whole gradient: a pure function.

    Of a tied embedding whose head goes early, rows of the embedding go beside it: at most all.
    """
    if is_exact:
        return gradient_bytes, gradient_bytes
    sent = int(gradient_bytes * _SHARE_SENT[options.get("gradient_hook", "none")])
    return sent, 2 * sent if options.get("early_tied_head") else sent


def gradients_synchronised(outputs: Outputs, cell: str) -> Finding | None:
    """Check number and bytes of the exchanges of every segment against one exchange of the gradient per step.

    In exact mode (`train.exact`) ranks gather the gradient of every micro-batch instead, and add them in one order.
    """
    gradient_bytes = outputs.base_model.num_parameters * _BYTES_PER_GRADIENT
    is_exact, run = outputs.params.train.exact, outputs.runs[cell]
    problems: dict[str, list[SegmentOutputs]] = {}
    for segment in run.segments:
        if run.facts.world_size == 1:
            found = _of_one_rank(segment)
        elif is_exact:
            found = _of_gathers(run, segment, gradient_bytes)
        else:
            found = _of_all_reduces(run, segment, gradient_bytes, outputs.params.cells[cell].options)
        if found is None:
            found = _of_record(segment, gradient_bytes, outputs, cell)
        if found:
            problems.setdefault(found, []).append(segment)
    if run.facts.world_size == 1 and not problems:
        return None
    return finding(
        [_told(what, segments) for what, segments in problems.items()],
        otherwise=f"per optimizer step {_described(cell, run, is_exact)}; the gradient has {_mib(gradient_bytes)}",
        numbers=_numbers(run, gradient_bytes),
    )


def _of_one_rank(segment: SegmentOutputs) -> str | None:
    # Wrapped in DDP, a baseline pays for an exchange with itself.
    number = segment.facts.num_all_reduces + segment.facts.num_gathers
    return f"one rank, yet {number} exchanges of gradients" if number else None


def _of_all_reduces(
    run: RunOutputs, segment: SegmentOutputs, gradient_bytes: int, options: Mapping[str, Any]
) -> str | None:
    facts, buckets, accumulated = segment.facts, segment.facts.gradient_bucket_bytes, run.facts.grad_accum_steps
    # The head of a tied embedding goes first and by itself; of the embedding, some rows follow.
    num_of_rows = 1 if options.get("early_tied_head") else 0
    counted, steps, needed = facts.num_all_reduces, facts.num_steps, max(1, len(buckets)) + num_of_rows
    if counted < needed * steps:
        why = "never exchanged" if counted == 0 else "not all exchanged in every step"
        return f"{counted} all-reduces where {needed * steps} are needed: gradients were {why}"
    if counted > needed * steps:
        # The last step of a segment may have fewer micro-batches, at least one.
        is_every = counted >= needed * ((steps - 1) * accumulated + 1)
        when = "on every micro-batch" if is_every else f"on more than the last of {accumulated} micro-batches"
        return (
            f"{counted / steps:g} all-reduces per step where 1 exchange of the {wording.counted(needed, 'bucket')} is "
            f"needed: synchronised {when if accumulated > 1 else 'more than once'}"
        )
    sent = int(sum(buckets) * steps * _SHARE_SENT[options.get("gradient_hook", "none")])
    most = sent + num_of_rows * buckets[0] * steps if buckets else sent
    if not sent <= facts.num_all_reduce_bytes <= most:
        hook = options.get("gradient_hook", "none")
        return (
            f"{facts.num_all_reduce_bytes / steps:,.0f} bytes were exchanged per step, the "
            f"{wording.counted(len(buckets), 'bucket')} hold {sum(buckets):,}"
            f"{'' if hook == 'none' else f', in {hook} {sent // steps:,}'}"
        )
    if sum(buckets) != gradient_bytes:
        return f"the buckets hold {sum(buckets):,} bytes, the gradient of all parameters has {gradient_bytes:,}"
    return None


def _of_gathers(run: RunOutputs, segment: SegmentOutputs, gradient_bytes: int) -> str | None:
    facts, steps, accumulated = segment.facts, segment.facts.num_steps, run.facts.grad_accum_steps
    if facts.num_all_reduces:
        return f"exact mode, yet {facts.num_all_reduces} all-reduces, whose order of addition nobody knows"
    # The last step of a segment may have fewer micro-batches, at least one.
    least, most = (steps - 1) * accumulated + 1, steps * accumulated
    whole, rest = divmod(facts.num_gather_bytes, gradient_bytes)
    if rest or not least <= whole <= most:
        return (
            f"{facts.num_gather_bytes / gradient_bytes:g} gradients were gathered in {wording.counted(steps, 'step')}, "
            f"one per micro-batch is needed: {least if least == most else f'{least} to {most}'}"
        )
    return None


def _of_record(segment: SegmentOutputs, gradient_bytes: int, outputs: Outputs, cell: str) -> str | None:
    """Return what torch's own record of the last steps' collectives says against what the steps counted."""
    recorded = segment.facts.recorded_exchanges
    if recorded is None or outputs.runs[cell].facts.world_size == 1:
        return None
    if recorded.number != recorded.counted_number:
        return (
            f"torch recorded {recorded.number} exchanges in the last {wording.counted(recorded.num_steps, 'step')}, "
            f"{recorded.counted_number} were counted"
        )
    options, is_exact = outputs.params.cells[cell].options, outputs.params.train.exact
    least, most = bytes_per_exchange(gradient_bytes, options, is_exact=is_exact)
    # In exact mode as many gradients as were counted, which is judged before; else one per step.
    times = recorded.counted_bytes // gradient_bytes if is_exact else recorded.num_steps
    if not times * least <= recorded.num_bytes <= times * most:
        return (
            f"the exchanges of the last {wording.counted(recorded.num_steps, 'step')} were given "
            f"{recorded.num_bytes:,} bytes by torch's record, {times * least:,} are needed"
        )
    return None


def _described(cell: str, run: RunOutputs, is_exact: bool) -> str:
    steps = sum(segment.facts.num_steps for segment in run.segments)
    if is_exact:
        gathers = sum(segment.facts.num_gathers for segment in run.segments) / steps
        return (
            f"{cell} {gathers:g} gathers of all ranks' gradients, added in one order; that all ranks then had the same "
            "sum is shown by the gates on parameters and loss curves"
        )
    reduces = sum(segment.facts.num_all_reduces for segment in run.segments) / steps
    buckets = run.segments[0].facts.gradient_bucket_bytes
    return f"{cell} {reduces:g} all-reduces for {wording.counted(len(buckets), 'bucket')} of {_mib(sum(buckets))}"


def _numbers(run: RunOutputs, gradient_bytes: int) -> Numbers:
    def per_step(name: str) -> float:
        steps = sum(segment.facts.num_steps for segment in run.segments)
        return float(sum(getattr(segment.facts, name) for segment in run.segments) / steps)

    buckets = run.segments[0].facts.gradient_bucket_bytes
    return {
        "gradient_bytes": gradient_bytes,
        "buckets": len(buckets),
        "bucket_bytes": sum(buckets),
        "all_reduces_per_step": per_step("num_all_reduces"),
        "all_reduce_bytes_per_step": per_step("num_all_reduce_bytes"),
        "gathers_per_step": per_step("num_gathers"),
        "gather_bytes_per_step": per_step("num_gather_bytes"),
    }


def _told(what: str, segments: list[SegmentOutputs]) -> str:
    """Return a problem once, with the first segment that has it and the number of others."""
    others = len(segments) - 1
    more = f" and {wording.counted(others, 'other segment')}" if others else ""
    return f"{segments[0].title}{more}: {what}"


def _mib(num_bytes: int) -> str:
    return f"{wording.three_digits(num_bytes / 2**20)} MiB"
