"""Does a cell's loss follow the baseline's? Coarsely: chaos parts right trainings, updates are checked apart."""

import numpy as np
from numpy.typing import NDArray

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding
from ddp_audit.process.wording import Reason, explain
from tasks.evaluating.loss_arithmetic import compute_relative_difference, compute_relative_differences
from tasks.records.outputs import Outputs

_WINDOW = 16
TOLERANCE = 1e-1
"""Relative, for the mean loss of a window and for the held-out loss at the end; right trainings of a ResNet18 that had
parted were within 1.2e-2."""


def check_loss_curves(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the cell's loss follows the baseline's; None of the baseline."""
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
        otherwise=explain(
            "passed",
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
        ),
    )


def list_differences(cell: str, own: NDArray[np.float64], expected: NDArray[np.float64]) -> list[Reason]:
    """Return where the losses are farther apart than allowed: the first window."""
    starts = range(0, max(len(own) - _WINDOW, 0) + 1, _WINDOW)
    for start, end in zip(starts, [*starts[1:], len(own)], strict=True):
        found = compute_relative_difference(own[start:end].sum(), expected[start:end].sum())
        if not found <= TOLERANCE:
            return [
                explain(
                    "window_differs",
                    "{cell}: mean loss of steps {first} to {last} differs by {difference:.1e}, at most {most:.0e} "
                    "allowed",
                    cell=cell, difference=found, first=start + 1, last=end, most=TOLERANCE,
                )
            ]  # fmt: skip
    return []
