"""Is it the same training? Checks of what the ranks did to the weights."""

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from tasks.reporting import wording
from tasks.reporting.gate import Finding, finding, not_checked
from tasks.reporting.outputs import Outputs, RunOutputs, SegmentOutputs
from tasks.reporting.statistics import relative_differences

_BYTES_PER_GRADIENT = 4
_SIZE_TOLERANCE = 0.05
"""Relative difference allowed between the bytes exchanged and the gradient's size."""
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 2**20, 25 * 2**20
"""DistributedDataParallel closes its first bucket at 1 MiB and every other one at 25 MiB."""

_EARLY_STEPS = 100
_EARLY_TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 1e-2}
"""Largest relative difference of the loss on any of the first steps.

In fp32 a right trainer differed by rounding, 1e-7 over 50 steps, and the mildest wrong one that was tried, a gradient
half as large before AdamW, by 2e-3; the bounds for 16 bit are set, not measured.
"""
_LATE_TOLERANCE = {"fp32": 1e-2, "bf16": 1e-1, "fp16": 1e-1}
"""Mean relative difference after that: rounding grows from step to step. Set, not measured."""

_START_BAND = 0.15
_START_DEVIATIONS = 4.0


def gradients_synchronised(outputs: Outputs) -> Finding:
    """Check number and bytes of the all-reduces of every segment against one exchange of the gradient per step."""
    num_bytes = outputs.base_model.num_parameters * _BYTES_PER_GRADIENT
    problems: list[tuple[SegmentOutputs, str]] = []
    seen = []
    for cell, run in outputs.runs.items():
        for segment in run.segments:
            problems += [(segment, what) for what in _sync_problems(run, segment, num_bytes)]
        if run.facts.world_size > 1:
            steps = sum(segment.facts.num_steps for segment in run.segments)
            reduces = sum(segment.facts.num_all_reduces for segment in run.segments)
            seen.append(f"{cell} {reduces / steps:g}")
    if not seen and not problems:
        return not_checked("no cell has more than one rank, so there is nothing to synchronise")
    return finding(
        _once_per_cell(problems),
        otherwise=f"all-reduces per optimizer step: {', '.join(seen)} (at most {_most_buckets(num_bytes)} for one "
        f"exchange of a gradient of {wording.three_digits(num_bytes / 2**20)} MiB); cells of one rank exchange nothing",
    )


def _sync_problems(run: RunOutputs, segment: SegmentOutputs, num_bytes: int) -> list[str]:
    facts, steps = segment.facts, segment.facts.num_steps
    if run.facts.world_size == 1:
        return [f"one rank, yet {facts.num_all_reduces} all-reduces"] if facts.num_all_reduces else []
    if facts.num_all_reduces < steps:
        return [f"{facts.num_all_reduces} all-reduces in {steps} optimizer steps; at least one per step is needed"]
    times = facts.num_all_reduce_bytes / steps / num_bytes
    if abs(times - 1) > _SIZE_TOLERANCE:
        return [f"{times:.2f} times the gradient's bytes were exchanged per optimizer step; once is needed"]
    most = _most_buckets(num_bytes)
    if facts.num_all_reduces > most * steps:
        return [
            f"{facts.num_all_reduces / steps:g} all-reduces per optimizer step, at most {most} for one exchange of the "
            f"gradient: the ranks synchronise on more than the last of {run.facts.grad_accum_steps} micro-batches"
        ]
    return []


def _once_per_cell(problems: list[tuple[SegmentOutputs, str]]) -> list[str]:
    """Return each problem of a cell once, with the first segment that has it and the number of others."""

    def others(number: int) -> str:
        return f" and {wording.counted(number, 'other segment')}" if number else ""

    segments: dict[tuple[str, str], list[SegmentOutputs]] = {}
    for segment, what in problems:
        segments.setdefault((segment.facts.cell, what), []).append(segment)
    return [f"{_where(found[0])}{others(len(found) - 1)}: {what}" for (_, what), found in segments.items()]


def _most_buckets(num_bytes: int) -> int:
    """Return the most buckets that DistributedDataParallel cuts a gradient of this size into."""
    return 1 + math.ceil(max(0, num_bytes - _FIRST_BUCKET_BYTES) / _BUCKET_BYTES)


def same_parameters(outputs: Outputs) -> Finding:
    """Check that the parameter checksums of all ranks agree at the end of every segment."""
    problems, num_compared = [], 0
    for run in outputs.runs.values():
        for segment in run.segments:
            checksums = segment.facts.parameter_checksums
            if len(checksums) != run.facts.world_size:
                problems.append(f"{_where(segment)}: {len(checksums)} checksums of {run.facts.world_size} ranks")
            elif len(set(checksums)) > 1:
                different = len(set(checksums))
                problems.append(f"{_where(segment)}: {different} different checksums on {len(checksums)} ranks")
            num_compared += run.facts.world_size > 1
    if not num_compared and not problems:
        return not_checked("no cell has more than one rank")
    return finding(
        problems,
        otherwise="the checksums of all parameters are equal on all ranks at the end of "
        f"{wording.counted(num_compared, 'segment')}",
    )


def segments_continue(outputs: Outputs) -> Finding:
    """Check that each segment started with the weights that the one before it ended with."""
    problems, num_compared = [], 0
    starts = {cell: run.segments[0].facts.start_checksum for cell, run in outputs.runs.items()}
    for cell, run in outputs.runs.items():
        if starts[cell] != starts[outputs.params.baseline]:
            problems.append(
                f"{cell}: started from weights {starts[cell][:12]}, expected {starts[outputs.params.baseline][:12]}"
            )
        for before, segment in itertools.pairwise(run.segments):
            num_compared += 1
            if segment.facts.start_checksum not in before.facts.parameter_checksums:
                problems.append(f"{_where(segment)}: started with other weights than {_where(before)} ended with")
    return finding(
        problems,
        otherwise=f"all cells started from weights {starts[outputs.params.baseline][:12]}; "
        f"{wording.counted(num_compared, 'later segment')} went on from the weights of the one before",
    )


def starts_from_base_model(outputs: Outputs) -> Finding:
    """Check that each cell's first loss lies in a band around the base model's held-out loss.

    The first batch holds other rows than the held-out slice, so this only tells a wrong start from a right one.
    """
    base = outputs.evaluation.models.get("base")
    if base is None:
        return not_checked("the base model was not evaluated")
    problems, seen, band = [], [], 0.0
    for cell, run in outputs.runs.items():
        losses = run.steps.loss[:_EARLY_STEPS]
        band = max(_START_BAND * base.loss, _START_DEVIATIONS * _fluctuation(losses))
        if not abs(losses[0] - base.loss) <= band:
            problems.append(
                f"{cell}: loss {losses[0]:.4f} at step 1, base model {base.loss:.4f} held out, band ±{band:.2f}"
            )
        seen.append(f"{cell} {losses[0]:.4f}")
    return finding(
        problems,
        otherwise=f"loss at step 1: {', '.join(seen)}; base model on the held-out rows: {base.loss:.4f}; "
        f"other rows, so only a band of ±{band:.2f} is asked for",
    )


def _fluctuation(losses: NDArray[np.float64]) -> float:
    """Return the standard deviation of single losses, from the median change between neighbours."""
    if len(losses) < 2:
        return 0.0
    return float(np.median(np.abs(np.diff(losses))) * 1.4826 / np.sqrt(2))


def loss_curves_coincide(outputs: Outputs) -> Finding:
    """Check that every cell's loss follows the baseline's, step by step."""
    if not outputs.others:
        return not_checked("only one cell")
    precision = outputs.params.train.precision
    early_tolerance, late_tolerance = _EARLY_TOLERANCE[precision], _LATE_TOLERANCE[precision]
    baseline = outputs.baseline.steps
    problems, seen = [], []
    for cell, run in outputs.others.items():
        if len(run.steps.loss) != len(baseline.loss):
            problems.append(f"{cell}: {len(run.steps.loss)} optimizer steps against {len(baseline.loss)}")
            continue
        differences = relative_differences(run.steps.loss, baseline.loss)
        early, late = differences[:_EARLY_STEPS], differences[_EARLY_STEPS:]
        if not early.max() <= early_tolerance:
            step = baseline.step[int(np.argmax(early))]
            problems.append(
                f"{cell}: loss differs by {early.max():.1e} at step {step}, at most {early_tolerance:.0e} allowed in "
                f"{precision}"
            )
        elif late.size and not late.mean() <= late_tolerance:
            problems.append(
                f"{cell}: loss differs by {late.mean():.1e} on average after step {_EARLY_STEPS}, "
                f"at most {late_tolerance:.0e} allowed in {precision}"
            )
        seen.append(f"{cell} {wording.difference(float(differences.max()))}")
    return finding(
        problems,
        otherwise=f"largest relative difference of the loss against {outputs.params.baseline} over "
        f"{wording.counted(len(baseline.loss), 'step')}: {', '.join(seen)} (allowed in {precision}: "
        f"{early_tolerance:.0e} on each of the first {_EARLY_STEPS} steps, {late_tolerance:.0e} on average after that)",
    )


def _where(segment: SegmentOutputs) -> str:
    return f"{segment.facts.cell} {segment.facts.range} epoch {segment.facts.epoch}"
