"""Is it the same training? Checks of what the ranks did to the weights, and of the losses that they logged."""

import itertools

import numpy as np

from tasks.reporting import wording
from tasks.reporting.gate import Finding, Number, finding, not_checked
from tasks.reporting.outputs import Outputs
from tasks.reporting.statistics import relative_differences
from tasks.stage.choices import unit_of

_EARLY_STEPS = 100
_EARLY_TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 1e-2}
"""Largest relative difference of the loss on any of the first steps.

In fp32 a right trainer differed by rounding, 1e-7 over 50 steps, and the mildest wrong one that was tried, a gradient
half as large before AdamW, by 2e-3; the bounds for 16 bit are set, not measured.
"""
_LATE_TOLERANCE = {"fp32": 1e-2, "bf16": 1e-1, "fp16": 1e-1}
"""Mean relative difference after that: rounding grows from step to step. Set, not measured."""

_START_TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-3}
"""Relative difference allowed between the loss at step 1 and the base model's.

Rows and weights are the same, so only rounding differs. Over random and pretrained models of 0.1 to 494 million
parameters and batches of 94 to 27,712 tokens, right trainers on a CPU were within 1e-7 (fp32), 9e-4 (bf16) and 9e-5
(fp16, which has three more bits); 16 bit is given ten times that, fp32 a hundred times, for the kernels of a GPU.
Against that stand a mean of the micro-batches' means, the mildest wrong loss that was tried, with 9e-5 to 6e-3 (which
16 bit cannot tell apart), labels of another position with 0.1 and more, and a loss logged 8 times too large.
"""


def same_parameters(outputs: Outputs) -> Finding:
    """Check that the parameter checksums of all ranks agree at the end of every segment."""
    problems, num_compared = [], 0
    for run in outputs.runs.values():
        for segment in run.segments:
            checksums = segment.facts.parameter_checksums
            if len(checksums) != run.facts.world_size:
                problems.append(f"{segment.title}: {len(checksums)} checksums of {run.facts.world_size} ranks")
            elif len(set(checksums)) > 1:
                different = len(set(checksums))
                problems.append(f"{segment.title}: {different} different checksums on {len(checksums)} ranks")
            num_compared += run.facts.world_size > 1
    if not num_compared and not problems:
        return not_checked("no cell has more than one rank")
    return finding(
        problems,
        otherwise="the checksums of all parameters are equal on all ranks at the end of "
        f"{wording.counted(num_compared, 'segment')}",
        numbers={
            "segments_compared": num_compared,
            "most_different_checksums": outputs.per_cell(
                lambda run: max(len(set(segment.facts.parameter_checksums)) for segment in run.segments)
            ),
        },
    )


def segments_continue(outputs: Outputs) -> Finding:
    """Check that each segment started with the weights that the one before it ended with."""
    problems: list[str] = []
    num_compared = 0
    starts = {cell: run.segments[0].facts.start_checksum for cell, run in outputs.runs.items()}
    for cell, run in outputs.runs.items():
        if starts[cell] != starts[outputs.params.baseline]:
            problems.append(
                f"{cell}: started from weights {starts[cell][:12]}, expected {starts[outputs.params.baseline][:12]}"
            )
        for before, segment in itertools.pairwise(run.segments):
            num_compared += 1
            if segment.facts.start_checksum not in before.facts.parameter_checksums:
                problems.append(f"{segment.title}: started with other weights than {before.title} ended with")
    return finding(
        problems,
        otherwise=f"all cells started from weights {starts[outputs.params.baseline][:12]}; "
        f"{wording.counted(num_compared, 'later segment')} went on from the weights of the one before",
        numbers={"later_segments_compared": num_compared, "breaks": len(problems)},
    )


def starts_from_base_model(outputs: Outputs) -> Finding:
    """Check each cell's start weights, and its loss at step 1 against the base model's on the very rows of that step.

    The stage `evaluate` computes that loss without the code of the ranks.
    """
    first, precision = outputs.evaluation.first_step, outputs.params.train.precision
    starts = {cell: run.segments[0].facts.start_checksum for cell, run in outputs.runs.items()}
    problems = [
        f"{cell}: started from weights {starts[cell][:12]}, the base model's are {first.parameter_checksum[:12]}"
        for cell in outputs.runs
        if starts[cell] != first.parameter_checksum
    ]
    if first.loss is None and not problems:
        return not_checked(f"the start weights are the base model's, but {first.why_no_loss}")
    if first.loss is None:
        return finding(problems, otherwise="", numbers={})
    tolerance = _START_TOLERANCE[precision]
    unit = unit_of(outputs.params.workload)
    counted = "" if unit == "image" else f" ({first.num_tokens:,} tokens)"
    where = f"the {first.num_rows:,} rows{counted} of step 1"
    losses = {cell: float(run.steps.loss[0]) for cell, run in outputs.runs.items()}
    differences = {cell: abs(loss / first.loss - 1) for cell, loss in losses.items()}
    problems += [
        f"{cell}: loss {losses[cell]:.6f} at step 1, the base model has {first.loss:.6f} on {where}: "
        f"{losses[cell] / first.loss:.6g} times as much, at most {tolerance:.0e} apart allowed in {precision}"
        for cell in outputs.runs
        if not differences[cell] <= tolerance
    ]
    seen = [f"{cell} {losses[cell]:.6f} ({wording.difference(differences[cell])} apart)" for cell in outputs.runs]
    return finding(
        problems,
        otherwise=f"start weights {first.parameter_checksum[:12]}, the base model's; loss at step 1: "
        f"{', '.join(seen)}; base model on {where}, in fp32: {first.loss:.6f} (at most "
        f"{tolerance:.0e} apart allowed in {precision})",
        numbers={
            "base_model_loss": first.loss,
            "loss_at_step_1": list(losses.values()),
            "relative_differences": list(differences.values()),
            "tolerance": tolerance,
        },
    )


def _precision_of_updates(outputs: Outputs) -> str:
    """Return the precision of forward and backward, or of the exchange of gradients where that has 16 bits."""
    hooks = [cell.options.get("gradient_hook", "none") for cell in outputs.params.cells.values()]
    exchanged = next((hook for hook in hooks if hook != "none"), "fp32")
    own = outputs.params.train.precision
    return own if own != "fp32" else exchanged


def loss_curves_coincide(outputs: Outputs) -> Finding:
    """Check that every cell's loss follows the baseline's, step by step."""
    if not outputs.others:
        return not_checked("only one cell")
    precision = _precision_of_updates(outputs)
    early_tolerance, late_tolerance = _EARLY_TOLERANCE[precision], _LATE_TOLERANCE[precision]
    baseline = outputs.baseline.steps
    problems, seen = [], []
    largest: dict[str, Number] = {outputs.params.baseline: 0.0}
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
        largest[cell] = float(differences.max())
        seen.append(f"{cell} {wording.difference(float(differences.max()))}")
    return finding(
        problems,
        otherwise=f"largest relative difference of the loss against {outputs.params.baseline} over "
        f"{wording.counted(len(baseline.loss), 'step')}: {', '.join(seen)} (allowed in {precision}: "
        f"{early_tolerance:.0e} on each of the first {_EARLY_STEPS} steps, {late_tolerance:.0e} on average after that)",
        numbers={
            "steps": outputs.per_cell(lambda run: len(run.steps.loss)),
            "largest_relative_difference": [largest.get(cell) for cell in outputs.runs],
            "early_tolerance": early_tolerance,
            "late_mean_tolerance": late_tolerance,
        },
    )
