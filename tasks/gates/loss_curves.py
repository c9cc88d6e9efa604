"""Does a cell's loss follow the baseline's? Held against how far right trainings of the same work part.

The baseline's is held against its own twin, a training of the same work by one process with code of its own.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.evaluating.loss_arithmetic import compute_relative_difference, compute_relative_differences
from tasks.gates.setting import find_twin_problems
from tasks.process import wording
from tasks.process.reasons import Reason, explain
from tasks.records.gate import Finding, make_failed_finding, make_finding, make_unchecked_finding
from tasks.records.outputs import Outputs
from tasks.records.twins import Twins
from tasks.strategies import get_exchange_dtype

MULTIPLE = 10.0
"""How many times as far as the twins a cell may part from the baseline on any step."""
_MULTIPLE_OF_WINDOW = 4.0
"""The same for the root mean square over a window, which scatters less than a step."""
_WINDOW = 8
_LATE_WINDOW = 16
_FLOOR = {"fp32": 2e-6, "bf16": 1e-3, "fp16": 2e-4}
"""Relative difference that is always allowed: the loss is rounded too, in 16 bit with every activation.

Until the first activation falls on the other side of a boundary, two trainings in 16 bit have the same loss to the bit;
in which step that happens is chance. fp16 has three bits more than bf16.
"""
_GROWTH = 6
"""Power of the number of steps by which right trainings may part further beyond the twins, which was the steepest seen:
a ResNet18's grew from 5e-5 at step 6 to 2e-2 at step 11, and from the floor to 8.5e-4 between steps 6 and 14."""
_LATE_TOLERANCE = 3e-2
"""At most, for the mean loss of a window there; right trainings of a ResNet18 that had parted were within 1.2e-2."""
_HELDOUT_TOLERANCE = 1e-1
"""At most, for the held-out loss at the end."""
_MULTIPLE_OF_SCATTER = 3.0
"""Where the twins part by more than that, how many times their largest difference both of these are instead."""
_TWIN_TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-3}
"""Relative difference that is always allowed between the baseline and its twin, which may run other kernels."""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What right trainings may differ by."""

    by_step: NDArray[np.float64]
    """Relative difference on each step that the twins cover, from step 1."""
    by_window: NDArray[np.float64]
    """Root mean square of it over each window of these steps."""
    num_covered: int = 0
    """Steps that the twins were trained for."""
    at_end: float = 0.0
    """Relative difference where the twins end."""
    late: float = _LATE_TOLERANCE
    """The most that the mean loss of a window beyond these steps may differ by."""
    heldout: float = _HELDOUT_TOLERANCE
    """The most that the held-out loss may differ by."""

    def compute_late(self, step: int) -> float:
        """Return what the mean loss of a window that ends with this step may differ by."""
        return min(self.late, self._extrapolate(step))

    def compute_heldout(self, num_steps: int) -> float:
        """Return what the held-out loss may differ by after so many steps."""
        return min(self.heldout, self._extrapolate(num_steps))

    def _extrapolate(self, step: int) -> float:
        if not self.num_covered:
            return np.inf
        # As far ahead as on the steps that the twins cover: chaos may set in sooner here than there.
        later = step + _compute_lookahead(step)
        return self.at_end * float(max(later / self.num_covered, 1.0) ** _GROWTH)


def check_loss_curves(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the cell's loss follows the baseline's as closely as right trainings of the work do each other's.

    Of the baseline: that its loss follows its twin's. Nothing is said of it without twins.
    """
    if others := find_twin_problems(outputs):
        # What needs no twins is asked all the same.
        found = check_loss_curves(replace(outputs, twins=None), cell)
        is_failed = found is not None and found.verdict == "failed"
        return found if is_failed else make_unchecked_finding(*(one.extend(f"{cell}: {{sentence}}") for one in others))
    if cell == outputs.params.baseline:
        return None if outputs.twins is None else _compare_with_twin(outputs, outputs.twins, cell)
    own, expected = outputs.runs[cell].steps.loss, outputs.baseline.steps.loss
    if len(own) != len(expected):
        return make_failed_finding(
            explain(
                "other_number_of_steps", "{cell}: {steps} optimizer steps against {steps_of_baseline}",
                cell=cell, steps=len(own), steps_of_baseline=len(expected),
            )
        )  # fmt: skip
    precision = _select_update_precision(outputs, cell)
    allowed = compute_tolerances(outputs.twins, precision=precision, num_steps=len(own))
    models = outputs.evaluation.models
    heldout = compute_relative_difference(models[cell].loss, models[outputs.params.baseline].loss)
    problems = list_differences(cell, own, expected, allowed)
    most = allowed.compute_heldout(len(own))
    if not heldout <= most:
        problems.append(
            explain(
                "heldout_loss_differs", "{cell}: held-out loss differs by {difference:.1e}, at most {most:.0e} allowed",
                cell=cell, difference=heldout, most=most,
            )
        )  # fmt: skip
    largest, reach = float(compute_relative_differences(own, expected).max()), len(allowed.by_step)
    return make_finding(
        problems,
        otherwise=explain(
            "passed",
            "largest relative difference of {cell}'s loss against {baseline} over {steps:plural step}: "
            "{largest_relative_difference:difference}; {tolerances}",
            cell=cell,
            baseline=outputs.params.baseline,
            steps=len(own),
            largest_relative_difference=largest,
            tolerances=_describe_tolerances(allowed, len(own)),
            steps_held_step_by_step=reach,
            allowed_on_last_of_them=float(allowed.by_step[-1]) if reach else None,
            late_tolerance=allowed.compute_late(len(own)),
            heldout_difference=heldout,
            heldout_tolerance=most,
        ),
    )


def _compare_with_twin(outputs: Outputs, twins: Twins, cell: str) -> Finding:
    """Hold the baseline against the twin that adds up in its order: else either is of another training."""
    precision = _select_update_precision(outputs, cell)
    own, twin = outputs.runs[cell].steps.loss, np.array(twins.twins[0].losses)
    by_step = compute_tolerances(twins, precision=precision, num_steps=len(own)).by_step
    num_steps = len(by_step)
    apart = compute_relative_differences(own[:num_steps], twin[:num_steps])
    allowed = np.maximum(by_step, _TWIN_TOLERANCE[precision])
    whose = "that of one process that did the same work with code of its own"
    problems = [
        explain(
            "differs_from_twin",
            "{cell}: loss differs by {difference:.1e} at step {step} from " + whose + ", at most {most:.0e} allowed",
            cell=cell,
            difference=apart[at],
            step=at + 1,
            most=allowed[at],
        )
        for at in np.flatnonzero(~(apart <= allowed))[:1].tolist()
    ]
    largest = float(apart.max(initial=0.0))
    return make_finding(
        problems,
        otherwise=explain(
            "passed",
            "{cell}: in its first {steps_beside_the_twin:plural step} the loss is at most "
            "{largest_relative_difference:difference} from " + whose,
            cell=cell, steps_beside_the_twin=num_steps, largest_relative_difference=largest,
        ),
    )  # fmt: skip


def compute_tolerances(twins: Twins | None, *, precision: str, num_steps: int) -> Allowed:
    """Return what the twins' differences allow, in a training of so many steps."""
    floor = _FLOOR[precision]
    if twins is None:
        none = np.zeros(0)
        return Allowed(by_step=none, by_window=none)
    widest = twins.widest[:num_steps]
    covered = len(widest)
    # Chaos sets in a few steps sooner in one pair than in another: what a step is allowed is what comes a little later.
    later = [min(step + _compute_lookahead(step), covered) for step in range(1, covered + 1)]
    reach = covered
    if covered < num_steps:
        reach = sum(step + _compute_lookahead(step) <= covered for step in range(1, covered + 1))
    scatter = _MULTIPLE_OF_SCATTER * float(widest[-1])
    by_window = _compute_widest_windows(twins.differences[:, :covered], reach)
    return Allowed(
        by_step=np.maximum(MULTIPLE * widest[np.array(later) - 1], floor)[:reach],
        by_window=np.maximum(_MULTIPLE_OF_WINDOW * by_window, floor),
        num_covered=covered,
        at_end=MULTIPLE * max(float(widest[-1]), floor),
        late=max(_LATE_TOLERANCE, scatter),
        heldout=max(_HELDOUT_TOLERANCE, scatter),
    )


def list_differences(
    cell: str, own: NDArray[np.float64], expected: NDArray[np.float64], allowed: Allowed
) -> list[Reason]:
    """Return where the losses are farther apart than allowed: the first step, window or late window."""
    apart, reach = compute_relative_differences(own, expected), len(allowed.by_step)
    wrong = np.flatnonzero(~(apart[:reach] <= allowed.by_step))
    if wrong.size:
        first = wrong[0]
        return [
            explain(
                "step_differs",
                "{cell}: loss differs by {difference:.1e} at step {step}, at most {most:.0e} allowed: {multiple:g} "
                "times what re-ordered sums grow to",
                cell=cell, difference=apart[first], step=first + 1, most=allowed.by_step[first], multiple=MULTIPLE,
            )
        ]  # fmt: skip
    for (start, end), bound in zip(_make_windows(0, reach, _WINDOW), allowed.by_window, strict=True):
        found = _compute_rms(apart[start:end])
        if not found <= bound:
            return [
                explain(
                    "window_differs",
                    "{cell}: loss differs by {difference:.1e} (root mean square) in steps {first} to {last}, at most "
                    "{most:.0e} allowed: {multiple:g} times what re-ordered sums grow to",
                    cell=cell, difference=found, first=start + 1, last=end, most=bound, multiple=_MULTIPLE_OF_WINDOW,
                )
            ]  # fmt: skip
    for start, end in _make_windows(reach, len(own), _LATE_WINDOW):
        found = compute_relative_difference(own[start:end].sum(), expected[start:end].sum())
        most = allowed.compute_late(end)
        if not found <= most:
            return [
                explain(
                    "late_window_differs",
                    "{cell}: mean loss of steps {first} to {last} differs by {difference:.1e}, at most {most:.0e} "
                    "allowed",
                    cell=cell, difference=found, first=start + 1, last=end, most=most,
                )
            ]  # fmt: skip
    return []


def _compute_lookahead(step: int) -> int:
    return max(2, step // 2)


def _make_windows(start: int, end: int, length: int) -> list[tuple[int, int]]:
    """Return windows of so many steps from `start` to `end`; a short last one is added to the one before."""
    if end <= start:
        return []
    starts = list(range(start, max(end - length, start) + 1, length))
    return list(zip(starts, [*starts[1:], end], strict=True))


def _compute_widest_windows(apart: NDArray[np.float64], reach: int) -> NDArray[np.float64]:
    """Return for each window of the steps within reach how far the twins part in it, or in one a little later."""
    found = [
        max(
            _compute_rms(pair[start + later : end + later])
            for pair in apart
            for later in range(_compute_lookahead(end) + 1)
            if start + later < apart.shape[1]
        )
        for start, end in _make_windows(0, reach, _WINDOW)
    ]
    return np.maximum.accumulate(np.array(found)) if found else np.zeros(0)


def _compute_rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _select_update_precision(outputs: Outputs, cell: str) -> str:
    """Return the precision of forward and backward, or of an exchange of gradients in 16 bit, as in either cell."""
    compared = (outputs.params.cells[name] for name in (cell, outputs.params.baseline))
    hooks = [get_exchange_dtype(one.strategy, one.options) for one in compared]
    exchanged = next((hook for hook in hooks if hook != "none"), "fp32")
    own = outputs.params.train.precision
    return own if own != "fp32" else exchanged


def _describe_tolerances(allowed: Allowed, num_steps: int) -> str:
    reach = len(allowed.by_step)
    words = []
    if reach:
        words.append(
            f"on each of the first {wording.format_plural(reach, 'step')} {MULTIPLE:g} times what re-ordered sums grow "
            f"to is allowed ({allowed.by_step[0]:.0e} to {allowed.by_step[-1]:.0e})"
        )
    if reach < num_steps:
        words.append(
            f"{'beyond them' if reach else 'no twins were trained:'} up to {allowed.compute_late(num_steps):.0e} for "
            f"the mean of every {_LATE_WINDOW} steps"
        )
    words.append(f"{allowed.compute_heldout(num_steps):.0e} for the held-out loss")
    return "; ".join(words)
