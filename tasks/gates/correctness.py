"""Is it the same training? Checks of what the ranks did to the weights, and of the loss that they logged."""

import itertools

import numpy as np
from numpy.typing import NDArray

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import Reason, explain
from tasks.gates.equivalence import read_updates
from tasks.records.outputs import Outputs
from training.strategies import find_traits

_WINDOW = 16
_LEAST_LOSS = 0.05
"""Of the first window's loss: what is below differs by as much of that as what is there. Rows that are known by heart
decide it, one by one."""
TOLERANCE = 1e-1
"""Relative, for the mean loss of a window and for the held-out loss at the end; right trainings of a ResNet18 that had
parted were within 1.2e-2."""


def check_same_parameters(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the checksums of parameters and optimizer of all ranks agree at the end of every segment."""
    run, problems, most_different = outputs.runs[cell], [], 0
    world_size = run.facts.world_size
    copies = find_traits(run.facts.strategy).count_copies(world_size, outputs.params.cells[cell].options)
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
        "{cell}: " + are_equal,
            cell=cell, world_size=world_size, segments_compared=len(run.segments),
            most_different_checksums=most_different,
    )  # fmt: skip


def check_segment_continuity(outputs: Outputs, cell: str) -> Finding:
    """Check that each segment started with the state that the one before it ended with, the first as the baseline."""
    segments, problems = outputs.runs[cell].segments, []
    start, expected = (part.facts.start_checksum for part in (segments[0], outputs.baseline.segments[0]))
    if start != expected:
        template = "{cell}: started from weights {start}, expected {expected}"
        problems.append(explain("other_start", template, cell=cell, start=start[:12], expected=expected[:12]))
    for before, segment in itertools.pairwise(segments):
        facts, its = segment.facts, before.facts
        if facts.start_checksum not in its.parameter_checksums:
            code, what = "other_weights", "other weights"
        elif facts.start_optimizer_checksum not in its.optimizer_checksums:
            code, what = "other_optimizer", "another optimizer state"
        else:
            continue
        template = "{where}: started with " + what + " than {before} ended with"
        problems.append(explain(code, template, where=segment.title, before=before.title))
    return make_finding(
        problems,
        "{cell}: started from weights {start}; {later_segments_compared:plural later segment} went on from the "
            "weights and the optimizer of the one before",
            cell=cell, start=start[:12], later_segments_compared=len(segments) - 1, breaks=len(problems),
    )  # fmt: skip


def check_base_model_start(outputs: Outputs, cell: str) -> Finding:
    """Check that the cell's first update began with the base model to the bit, without moments, and with its loss.

    One process with code of its own has computed that loss: of the micro-batches, with dropout if the model has it, and
    without it of the rows, one by one.
    """
    run = outputs.runs[cell]
    first = next((update for update in read_updates(run) if update.step == 1), None)
    if first is None or first.verdict == "not checked":
        why = "it was not drawn when it was trained" if first is None else first.problem
        return make_unchecked_finding(
            explain("first_update_not_checked", "{cell}: the first update was not checked: {why}", cell=cell, why=why)
        )
    problems = []
    if first.start_problem:
        problems.append(explain("other_start", "{cell}: {problem}", cell=cell, problem=first.start_problem))
    for kind, whose in (("loss", "of its micro-batches"), ("rows", "of its rows, one by one,")):
        value = first.compared.get(kind)
        if value is not None and not value.difference <= value.tolerance:
            problems.append(
                explain(
                    "other_loss",
                    "{cell}: loss {loss:.6f} at step 1, that " + whose + " is {difference:.1e} apart in one process, "
                    "{tolerance:.0e} allowed",
                    cell=cell, loss=float(run.steps.loss[0]), difference=value.difference, tolerance=value.tolerance,
                )
            )  # fmt: skip
    return make_finding(
        problems,
        "{cell}: step 1 began with the base model's weights to the bit ({start}), and without moments; its loss "
        "{loss:.6f} is one process's",
        cell=cell,
        start=run.segments[0].facts.start_checksum[:12],
        loss=float(run.steps.loss[0]),
        **{f"{kind}_difference": item.difference for kind, item in first.compared.items() if kind in ("loss", "rows")},
    )


def check_loss_curves(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the cell's loss follows the baseline's; None of the baseline.

    Coarsely: chaos parts right trainings, updates are checked apart.
    """
    baseline = outputs.params.baseline
    if cell == baseline:
        return None
    own, expected = outputs.runs[cell].steps.loss, outputs.baseline.steps.loss
    if len(own) != len(expected):
        return make_failed_finding(
            explain(
                "other_number_of_steps", "{cell}: {steps} optimizer steps against {steps_of_baseline}",
                cell=cell, steps=len(own), steps_of_baseline=len(expected),
            )
        )  # fmt: skip
    models = outputs.evaluation.models
    heldout = compute_relative_difference(models[cell].loss, models[baseline].loss)
    problems = list_differences(cell, own, expected)
    if not heldout <= TOLERANCE:
        problems.append(
            explain(
                "heldout_loss_differs", "{cell}: held-out loss differs by {difference:.1e}, at most {most:.0e} allowed",
                cell=cell, difference=heldout, most=TOLERANCE,
            )
        )  # fmt: skip
    return make_finding(
        problems,
        "largest relative difference of {cell}'s loss against {baseline} over {steps:plural step}: "
        "{largest_relative_difference:difference}; up to {tolerance:.0e} is allowed for the mean of every {window} "
        "steps and for the held-out loss",
        cell=cell,
        baseline=baseline,
        steps=len(own),
        largest_relative_difference=float(compute_relative_differences(own, expected).max()),
        tolerance=TOLERANCE,
        window=_WINDOW,
        heldout_difference=heldout,
    )


def list_differences(cell: str, own: NDArray[np.float64], expected: NDArray[np.float64]) -> list[Reason]:
    """Return where the losses are farther apart than allowed: the first window."""
    starts = range(0, max(len(own) - _WINDOW, 0) + 1, _WINDOW)
    least = _LEAST_LOSS * abs(float(expected[:_WINDOW].mean()))
    for start, end in itertools.pairwise((*starts, len(own))):
        mine, its = float(own[start:end].mean()), float(expected[start:end].mean())
        scale = max(abs(its), least)
        difference = abs(mine - its) / scale if scale else compute_relative_difference(mine, its)
        if not difference <= TOLERANCE:
            return [
                explain(
                    "window_differs",
                    "{cell}: mean loss of steps {first} to {last} differs by {difference:.1e}, at most {most:.0e} "
                    "allowed",
                    cell=cell, difference=difference, first=start + 1, last=end, most=TOLERANCE,
                )
            ]  # fmt: skip
    return []


def compute_relative_differences(values: NDArray[np.float64], baseline: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return |value - baseline| / |baseline|, element by element; 0 where both are 0."""
    difference = np.abs(values - baseline)
    scale = np.abs(baseline)
    return np.divide(difference, scale, out=np.where(difference == 0, 0.0, np.inf), where=scale > 0)


def compute_relative_difference(value: float, baseline: float) -> float:
    """Return |value - baseline| / |baseline|; 0 where both are 0, infinite where the baseline alone is."""
    return float(compute_relative_differences(np.array(value), np.array(baseline)))
