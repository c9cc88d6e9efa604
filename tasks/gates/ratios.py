"""The arithmetic of a comparison: ratios of seconds and what they mean."""

import math

import numpy as np
from numpy.typing import NDArray

NOISE_OF_ONE_RUN = 0.05
"""Relative difference below which two single runs are not told apart; a rule of thumb, not measured."""


def compute_speedup(baseline_seconds: float, seconds: float) -> float:
    """Return how many times faster the same work was done; below 1.0 is slower."""
    if baseline_seconds <= 0 or seconds <= 0:
        raise ValueError(f"seconds must be above 0; got {baseline_seconds} and {seconds}")
    return baseline_seconds / seconds


def compute_parallel_efficiency(ratio: float, world_size: int, baseline_world_size: int = 1) -> float:
    """Return the share of linear speedup that was reached; 1.0 is linear.

    A little above 1.0 is possible (caches); but first suspect unequal work of the two cells.
    Raises ValueError if a world size is below 1. Source: Grama et al. 2003, Introduction to Parallel Computing, 5.2.
    """
    if world_size < 1 or baseline_world_size < 1:
        raise ValueError(f"world_size must be at least 1; got {world_size} and {baseline_world_size}")
    return ratio * baseline_world_size / world_size


def compute_karp_flatt(ratio: float, world_size: int) -> float | None:
    """Return the experimentally determined serial fraction; None for one rank, where it is not defined.

    Below 0 says that the baseline is unfair. Source: Karp and Flatt 1990, CACM 33(5).
    """
    if world_size < 2:
        return None
    return (1 / ratio - 1 / world_size) / (1 - 1 / world_size)


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
