"""Arithmetic of losses: perplexity, how far two differ, a curve in fewer points."""

import math

import numpy as np
from numpy.typing import NDArray


def compute_perplexity(loss: float) -> float | None:
    """Return exp(loss), or None where that is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return None


def compute_relative_differences(values: NDArray[np.float64], baseline: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return |value - baseline| / |baseline|, element by element; 0 where both are 0."""
    difference = np.abs(values - baseline)
    scale = np.abs(baseline)
    return np.divide(difference, scale, out=np.where(difference == 0, 0.0, np.inf), where=scale > 0)


def compute_relative_difference(value: float, baseline: float) -> float:
    """Return |value - baseline| / |baseline|; 0 where both are 0, infinite where the baseline alone is."""
    return float(compute_relative_differences(np.array(value), np.array(baseline)))


def thin_out_losses(
    steps: NDArray[np.int64], losses: NDArray[np.float64], *, max_points: int
) -> tuple[int, list[int], list[float]]:
    """Return (steps per point, last step of each point, mean loss of each point), at most `max_points` points."""
    per_point = max(1, math.ceil(len(steps) / max_points))
    if per_point == 1:
        return 1, steps.tolist(), losses.tolist()
    ends = [min(start + per_point, len(steps)) for start in range(0, len(steps), per_point)]
    means = [float(np.mean(losses[start:end])) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return per_point, [int(steps[end - 1]) for end in ends], means
