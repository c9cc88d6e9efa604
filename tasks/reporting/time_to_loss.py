"""Time to loss: the training seconds until each cell's loss first came as low as was asked.

Cells of the same training come there at the same step, so that their seconds differ by speed alone. A step without any
target has no loss: it takes its seconds, and is none of the steps that the loss is smoothed over or reached in.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.records.facts import Record
from tasks.records.outputs import Outputs

NEAR_SHARE = 0.005
"""How far above the baseline's last smoothed loss counts as having come there.

Without it two equal curves would be told apart by their rounding, since the last value is the lowest of most.
"""
_MOST_STEPS, _SHARE_OF_STEPS = 50, 20


class CellTimeToLoss(Record):
    """When one cell came there."""

    cell: str
    """Name of the cell."""
    step: int | None
    """The optimizer step (1-based) after which it had; null if it never did."""
    train_seconds: float | None
    """Seconds of optimizer steps up to then, the slowest rank's; null if it never did."""


class TimeToLoss(Record):
    """When the cells came to a training loss."""

    target_loss: float
    """The loss in nats per token, of the smoothed curve."""
    is_stated: bool
    """Whether params.yaml states it; else it is the baseline's last smoothed loss and 0.5 % more."""
    window_steps: int
    """Each value of the smoothed curve is the mean over so many steps, the last of which it stands for."""
    cells: list[CellTimeToLoss]
    """The cells, the baseline first."""


def find_first_reached(losses: NDArray[np.float64], *, target: float, window: int) -> int | None:
    """Return the index of the step after which the smoothed loss is `target` or less for the first time, or None."""
    smoothed = np.lib.stride_tricks.sliding_window_view(losses, window).mean(axis=1)
    reached = np.flatnonzero(smoothed <= target)
    return int(reached[0]) + window - 1 if len(reached) else None


def compute_time_to_loss(outputs: Outputs) -> TimeToLoss | None:
    """Return when each cell came to the loss that params.yaml states, or to where the baseline ended.

    None where a cell has no step with a target.
    """
    losses = {cell: run.steps.loss[run.steps.with_loss] for cell, run in outputs.runs.items()}
    fewest = min(map(len, losses.values()))
    if not fewest:
        return None
    window = max(1, min(_MOST_STEPS, fewest // _SHARE_OF_STEPS))
    stated = outputs.params.quality.target_loss
    last = float(losses[outputs.params.baseline][-window:].mean())
    target = last * (1 + NEAR_SHARE) if stated is None else stated
    cells = []
    for cell, run in outputs.runs.items():
        step, seconds = None, None
        if (reached := find_first_reached(losses[cell], target=target, window=window)) is not None:
            index = run.steps.with_loss[reached]
            step, seconds = int(run.steps.step[index]), float(run.steps.seconds[: index + 1].sum())
        cells.append(CellTimeToLoss(cell=cell, step=step, train_seconds=seconds))
    return TimeToLoss(target_loss=target, is_stated=stated is not None, window_steps=window, cells=cells)
