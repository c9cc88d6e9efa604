"""The seconds of an exchange by its size: what the link between the ranks can do. All ranks run it together."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from training.process.distributed import Ranks
from training.step.traffic import ALL_REDUCE

_SIZES = tuple(2**power for power in range(16, 30))
"""Bytes: 64 KiB to 512 MiB."""
_SECONDS = 1.5
"""For all sizes."""
_LEAST_REPEATS, _MOST_REPEATS = 3, 8
"""A size for which there is no time for the least is not begun: fewer say nothing of their spread."""
_SHARE_OF_FREE_MEMORY = 0.25
"""What the buffers may take of it: gloo copies what it sends."""


def sweep_exchange(ranks: Ranks, *, seconds_of_link: Callable[[int], float] | None = None) -> dict[str, Any]:
    """Return the median seconds of an all-reduce of fp32 on the group of the gradients, for each size that fits.

    Every size may use an equal share of the time that is left, so that small ones are repeated more often than large
    ones. With `seconds_of_link` these are slept for, and nothing is exchanged. For several ranks.
    """
    points: list[dict[str, Any]] = []
    # The first exchange of a group connects it, which NCCL may take seconds for.
    _make_exchange(ranks, _SIZES[0], seconds_of_link)()
    ranks.synchronize()
    started = time.perf_counter()
    for index, num_bytes in enumerate(_SIZES):
        left = _SECONDS - _gather_slowest(ranks, [time.perf_counter() - started])[0]
        # Two more that lead in.
        times = (_LEAST_REPEATS + 2) * num_bytes
        needed = times * points[-1]["median_seconds"] / points[-1]["num_bytes"] if points else 0.0
        free = float(ranks.gather([_count_free_bytes(ranks)]).min())
        is_too_large = seconds_of_link is None and num_bytes > free * _SHARE_OF_FREE_MEMORY
        if left <= 0 or needed > left or is_too_large:
            break
        exchange = _make_exchange(ranks, num_bytes, seconds_of_link)
        _time_together(ranks, exchange, 1)
        once = _time_together(ranks, exchange, 1)[0]
        affordable = int(left / (len(_SIZES) - index) / max(once, 1e-9))
        seconds = _time_together(ranks, exchange, min(max(affordable, _LEAST_REPEATS), _MOST_REPEATS))
        points.append({"num_bytes": num_bytes, "median_seconds": float(np.median(seconds))})
    return {
        "kind": ALL_REDUCE,
        "world_size": ranks.world_size,
        "backend": ranks.backend,
        "is_slept_for": seconds_of_link is not None,
        "points": points,
    }


def _make_exchange(ranks: Ranks, num_bytes: int, seconds_of_link: Callable[[int], float] | None) -> Callable[[], Any]:
    if seconds_of_link is not None:
        seconds = seconds_of_link(num_bytes)
        return lambda: time.sleep(seconds)
    group: Any = ranks.gradient_group
    # Ones, not zeros: every page is then really there. Sums overflow to infinity at most, which costs nothing more.
    whole = torch.ones(max(num_bytes // 4, 1), dtype=torch.float32, device=ranks.device)
    return lambda: dist.all_reduce(whole, group=group)


def _time_together(ranks: Ranks, exchange: Callable[[], Any], num_repeats: int) -> list[float]:
    """Return the seconds of each of several exchanges, the slowest rank's, all ranks beginning together."""
    seconds = []
    for _ in range(num_repeats):
        ranks.highest(0)
        ranks.synchronize()
        started = time.perf_counter()
        exchange()
        ranks.synchronize()
        seconds.append(time.perf_counter() - started)
    return _gather_slowest(ranks, seconds)


def _gather_slowest(ranks: Ranks, seconds: list[float]) -> list[float]:
    slowest: list[float] = ranks.gather(seconds).max(axis=0).tolist()
    return slowest


def _count_free_bytes(ranks: Ranks) -> float:
    """Return the memory that this rank may still take, if all take as much."""
    if ranks.device.type == "cuda":
        # Ranks that talk over gloo may share the GPU.
        return torch.cuda.mem_get_info(ranks.device)[0] / (1 if ranks.backend == "nccl" else ranks.world_size)
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    free = next(int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:")
    most, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if most.exists() and (limit := most.read_text().strip()) != "max":
        free = min(free, int(limit) - int(used.read_text()))
    return free / ranks.world_size
