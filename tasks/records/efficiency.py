"""Speedup and efficiency: how many times as fast the same work was done, and what share of linear that is."""

from tasks.records.estimate import Estimate


def compute_speedup(baseline_seconds: float, seconds: float) -> float:
    """Return how many times faster the same work was done; below 1.0 is slower."""
    if baseline_seconds <= 0 or seconds <= 0:
        raise ValueError(f"seconds must be above 0; got {baseline_seconds} and {seconds}")
    return baseline_seconds / seconds


def compute_parallel_efficiency(speedup: float, world_size: int, baseline_world_size: int = 1) -> float:
    """Return the share of linear speedup that was reached; 1.0 is linear.

    A little above 1.0 is possible (caches); but first suspect unequal work of the two cells.
    Raises ValueError if a world size is below 1. Source: Grama et al. 2003, Introduction to Parallel Computing, 5.2.
    """
    if world_size < 1 or baseline_world_size < 1:
        raise ValueError(f"world_size must be at least 1; got {world_size} and {baseline_world_size}")
    return speedup * baseline_world_size / world_size


def estimate_efficiency(speedup: Estimate, world_size: int, baseline_world_size: int) -> Estimate:
    """Return the parallel efficiency that belongs to a speedup; its interval is the speedup's, divided likewise."""
    ends = (speedup.value, speedup.low, speedup.high)
    value, low, high = (compute_parallel_efficiency(end, world_size, baseline_world_size) for end in ends)
    return Estimate(value=value, low=low, high=high)


def compute_karp_flatt(speedup: float, world_size: int) -> float | None:
    """Return the experimentally determined serial fraction; None for one rank, where it is not defined.

    Below 0 says that the baseline is unfair. Source: Karp and Flatt 1990, CACM 33(5).
    """
    if world_size < 2:
        return None
    return (1 / speedup - 1 / world_size) / (1 - 1 / world_size)
