"""Is it the same training? Checks of what the ranks did to the weights, and of the first loss that they logged."""

import itertools

from tasks.evaluating.loss_arithmetic import compute_relative_difference
from tasks.params.choices import read_unit
from tasks.process import wording
from tasks.records.gate import Finding, make_finding, make_unchecked_finding
from tasks.records.outputs import Outputs
from tasks.strategies import find_profile

_START_TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-3}
"""Relative difference allowed between the loss at step 1 and the base model's.

Rows and weights are the same, so only rounding differs. Over random and pretrained models of 0.1 to 494 million
parameters and batches of 94 to 27,712 tokens, right trainers on a CPU were within 1e-7 (fp32), 9e-4 (bf16) and 9e-5
(fp16, which has three more bits); 16 bit is given ten times that, fp32 a hundred times, for the kernels of a GPU.
Against that stand a mean of the micro-batches' means, the mildest wrong loss that was tried, with 9e-5 to 6e-3 (which
16 bit cannot tell apart), labels of another position with 0.1 and more, and a loss logged 8 times too large.
"""


def check_same_parameters(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the checksums of parameters and optimizer of all ranks agree at the end of every segment."""
    run, problems, most_different = outputs.runs[cell], [], 0
    profile, world_size = find_profile(run.facts.strategy), run.facts.world_size
    if profile is None:
        return make_unchecked_finding(f"{cell}: how its strategy {run.facts.strategy} shares the state is not known")
    copies = profile.count_copies(world_size, outputs.params.cells[cell].options)
    for segment in run.segments:
        facts = segment.facts
        for what, number, checksums in (
            ("", copies.parameters, facts.parameter_checksums),
            (" of optimizers", copies.optimizer, facts.optimizer_checksums),
        ):
            different = len(set(checksums))
            most_different = max(most_different, different)
            if len(checksums) != number:
                of_what = "ranks" if number == world_size else "copies of the state"
                problems.append(f"{segment.title}: {len(checksums)} checksums{what} of {number} {of_what}")
            elif different > 1:
                problems.append(f"{segment.title}: {different} different checksums{what} on {len(checksums)} ranks")
    if world_size == 1 and not problems:
        return None
    ends = f"at the end of {wording.format_plural(len(run.segments), 'segment')}"
    are_equal = f"the checksums of all parameters and of the optimizer are equal on all ranks {ends}"
    if copies.parameters == 1 < world_size:
        are_equal = f"its {world_size} ranks hold one copy of the state between them, gathered and checked {ends}"
    elif copies.optimizer == 1 < world_size:
        are_equal = (
            f"the checksums of all parameters are equal on all ranks {ends}; they hold one copy of the optimizer's "
            "state between them, gathered and checked"
        )
    return make_finding(
        problems,
        otherwise=f"{cell}: {are_equal}",
        numbers={"segments_compared": len(run.segments), "most_different_checksums": most_different},
    )


def check_segment_continuity(outputs: Outputs, cell: str) -> Finding:
    """Check that each segment started with the state that the one before it ended with, the first as the baseline."""
    segments, problems = outputs.runs[cell].segments, []
    start, expected = (part.facts.start_checksum for part in (segments[0], outputs.baseline.segments[0]))
    if start != expected:
        problems.append(f"{cell}: started from weights {start[:12]}, expected {expected[:12]}")
    for before, segment in itertools.pairwise(segments):
        facts, its = segment.facts, before.facts
        if facts.start_checksum not in its.parameter_checksums:
            problems.append(f"{segment.title}: started with other weights than {before.title} ended with")
        elif facts.start_optimizer_checksum not in its.optimizer_checksums:
            problems.append(f"{segment.title}: started with another optimizer state than {before.title} ended with")
    return make_finding(
        problems,
        otherwise=f"{cell}: started from weights {start[:12]}; "
        f"{wording.format_plural(len(segments) - 1, 'later segment')} "
        "went on from the weights and the optimizer of the one before",
        numbers={"later_segments_compared": len(segments) - 1, "breaks": len(problems)},
    )


def check_base_model_start(outputs: Outputs, cell: str) -> Finding:
    """Check a cell's start weights, and its loss at step 1 against the base model's on the very rows of that step.

    The stage `evaluate` computes that loss without the code of the ranks.
    """
    first, precision = outputs.evaluation.first_step, outputs.params.train.precision
    run, expected = outputs.runs[cell], first.parameter_checksum
    start, problems = run.segments[0].facts.start_checksum, []
    if start != expected:
        problems.append(f"{cell}: started from weights {start[:12]}, the base model's are {expected[:12]}")
    if first.loss is None and not problems:
        return make_unchecked_finding(f"{cell}: the start weights are the base model's, but {first.why_no_loss}")
    if first.loss is None:
        return make_finding(problems, otherwise="", numbers={})
    tolerance = _START_TOLERANCE[precision]
    unit = read_unit(outputs.params.workload)
    counted = "" if unit == "image" else f" ({first.num_tokens:,} tokens)"
    where = f"the {first.num_rows:,} rows{counted} of step 1"
    loss = float(run.steps.loss[0])
    difference = compute_relative_difference(loss, first.loss)
    if not difference <= tolerance:
        times = f"{loss / first.loss:.6g} times as much, " if first.loss else ""
        problems.append(
            f"{cell}: loss {loss:.6f} at step 1, the base model has {first.loss:.6f} on {where}: "
            f"{times}at most {tolerance:.0e} apart allowed in {precision}"
        )
    return make_finding(
        problems,
        otherwise=f"{cell}: start weights {expected[:12]}, the base model's; loss at step 1: {loss:.6f} "
        f"({wording.format_difference(difference)} apart); base model on {where}, in fp32: {first.loss:.6f} (at most "
        f"{tolerance:.0e} apart allowed in {precision})",
        numbers={
            "base_model_loss": first.loss,
            "loss_at_step_1": loss,
            "relative_difference": difference,
            "tolerance": tolerance,
        },
    )
