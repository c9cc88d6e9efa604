"""Is it the same training? Checks of what the ranks did to the weights, and of the first loss that they logged."""

import itertools

from tasks.evaluating.loss_arithmetic import compute_relative_difference
from tasks.params.choices import read_unit
from tasks.process.reasons import explain
from tasks.records.gate import Finding, make_failed_finding, make_finding, make_unchecked_finding
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
        return make_unchecked_finding(
            explain(
                "strategy_unknown", "{cell}: how its strategy {strategy} shares the state is not known",
                cell=cell, strategy=run.facts.strategy,
            )
        )  # fmt: skip
    copies = profile.count_copies(world_size, outputs.params.cells[cell].options)
    for segment in run.segments:
        facts = segment.facts
        for what, number, checksums in (
            ("", copies.parameters, facts.parameter_checksums),
            (" of optimizers", copies.optimizer, facts.optimizer_checksums),
        ):
            different = len(set(checksums))
            most_different = max(most_different, different)
            numbers = {"where": segment.title, "checksums": len(checksums), "copies": number, "different": different}
            if len(checksums) != number:
                of_what = "ranks" if number == world_size else "copies of the state"
                problems.append(
                    explain(
                        "checksums_missing", "{where}: {checksums} checksums" + what + " of {copies} " + of_what,
                        **numbers,
                    )
                )  # fmt: skip
            elif different > 1:
                problems.append(
                    explain(
                        "other_optimizer" if what else "other_parameters",
                        "{where}: {different} different checksums" + what + " on {checksums} ranks", **numbers,
                    )
                )  # fmt: skip
    if world_size == 1 and not problems:
        return None
    ends = "at the end of {segments_compared:plural segment}"
    are_equal = f"the checksums of all parameters and of the optimizer are equal on all ranks {ends}"
    if copies.parameters == 1 < world_size:
        are_equal = f"its {{world_size}} ranks hold one copy of the state between them, gathered and checked {ends}"
    elif copies.optimizer == 1 < world_size:
        are_equal = (
            f"the checksums of all parameters are equal on all ranks {ends}; they hold one copy of the optimizer's "
            "state between them, gathered and checked"
        )
    return make_finding(
        problems,
        otherwise=explain(
            "passed", "{cell}: " + are_equal,
            cell=cell, world_size=world_size, segments_compared=len(run.segments),
            most_different_checksums=most_different,
        ),
    )  # fmt: skip


def check_segment_continuity(outputs: Outputs, cell: str) -> Finding:
    """Check that each segment started with the state that the one before it ended with, the first as the baseline."""
    segments, problems = outputs.runs[cell].segments, []
    start, expected = (part.facts.start_checksum for part in (segments[0], outputs.baseline.segments[0]))
    if start != expected:
        problems.append(
            explain(
                "other_start", "{cell}: started from weights {start}, expected {expected}",
                cell=cell, start=start[:12], expected=expected[:12],
            )
        )  # fmt: skip
    for before, segment in itertools.pairwise(segments):
        facts, its = segment.facts, before.facts
        for code, what, is_the_same in (
            ("other_weights", "other weights", facts.start_checksum in its.parameter_checksums),
            ("other_optimizer", "another optimizer state", facts.start_optimizer_checksum in its.optimizer_checksums),
        ):
            if not is_the_same:
                problems.append(
                    explain(
                        code, "{where}: started with " + what + " than {before} ended with",
                        where=segment.title, before=before.title,
                    )
                )  # fmt: skip
                break
    return make_finding(
        problems,
        otherwise=explain(
            "passed",
            "{cell}: started from weights {start}; {later_segments_compared:plural later segment} went on from the "
            "weights and the optimizer of the one before",
            cell=cell, start=start[:12], later_segments_compared=len(segments) - 1, breaks=len(problems),
        ),
    )  # fmt: skip


def check_base_model_start(outputs: Outputs, cell: str) -> Finding:
    """Check a cell's start weights, and its loss at step 1 against the base model's on the very rows of that step.

    The stage `evaluate` computes that loss without the code of the ranks.
    """
    first, precision = outputs.evaluation.first_step, outputs.params.train.precision
    run, expected = outputs.runs[cell], first.parameter_checksum
    start, problems = run.segments[0].facts.start_checksum, []
    if start != expected:
        problems.append(
            explain(
                "other_start", "{cell}: started from weights {start}, the base model's are {expected}",
                cell=cell, start=start[:12], expected=expected[:12],
            )
        )  # fmt: skip
    if first.loss is None and not problems:
        return make_unchecked_finding(
            explain(
                "no_loss_of_the_base_model", "{cell}: the start weights are the base model's, but {why}",
                cell=cell, why=first.why_no_loss,
            )
        )  # fmt: skip
    if first.loss is None:
        return make_failed_finding(*problems)
    tolerance = _START_TOLERANCE[precision]
    counted = " ({tokens:,} tokens)" * (read_unit(outputs.params.workload) != "image")
    where = "the {rows:,} rows" + counted + " of step 1"
    loss = float(run.steps.loss[0])
    difference = compute_relative_difference(loss, first.loss)
    numbers = {
        "cell": cell, "start": expected[:12], "base_model_loss": first.loss, "loss_at_step_1": loss,
        "relative_difference": difference, "tolerance": tolerance, "precision": precision, "rows": first.num_rows,
        "tokens": first.num_tokens,
    }  # fmt: skip
    if not difference <= tolerance:
        times = "{times:.6g} times as much, " if first.loss else ""
        problems.append(
            explain(
                "other_loss",
                "{cell}: loss {loss_at_step_1:.6f} at step 1, the base model has {base_model_loss:.6f} on "
                f"{where}: {times}" "at most {tolerance:.0e} apart allowed in {precision}",
                **numbers, times=loss / first.loss if first.loss else None,
            )
        )  # fmt: skip
    return make_finding(
        problems,
        otherwise=explain(
            "passed",
            "{cell}: start weights {start}, the base model's; loss at step 1: {loss_at_step_1:.6f} "
            "({relative_difference:difference} apart); base model on " + where + ", in fp32: {base_model_loss:.6f} (at "
            "most {tolerance:.0e} apart allowed in {precision})",
            **numbers,
        ),
    )  # fmt: skip
