"""What the link between the ranks can do: the largest exchange, and the line through all sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.measuring.arms import Cell, make_trained_arm
from tasks.measuring.workers import Workers
from tasks.records.link_speed import LinkSpeed

_NUM_REPEATS, _SECONDS = 8, 1.5


def measure_link(workers: Workers, cell: Cell) -> LinkSpeed | None:
    """Return what all-reduces between the ranks of the cell came to (training/probing/sweep.py); None without any."""
    variant = dict(make_trained_arm(cell).variant)
    answers = workers.ask(
        "sweep", variant=variant, doing="measuring the link",
        num_repeats=_NUM_REPEATS, seconds_budget=_SECONDS,
    )  # fmt: skip
    return compute_link_speed(answers[0])


def compute_link_speed(sweep: Mapping[str, Any]) -> LinkSpeed | None:
    """Return what the largest all-reduce of a sweep came to, with the line through all; None where it has none.

    Source of the bus bandwidth: nccl-tests, doc/PERFORMANCE.md.
    """
    if not sweep["points"]:
        return None
    largest, world_size = sweep["points"][-1], sweep["world_size"]
    sizes, seconds = ([point[name] for point in sweep["points"]] for name in ("num_bytes", "median_seconds"))
    latency, per_byte = fit_line(sizes, seconds)
    over_a_link = 2 * (world_size - 1) / world_size * largest["num_bytes"]
    return LinkSpeed(
        world_size=world_size,
        kind=sweep["kind"],
        backend=sweep["backend"],
        num_bytes=largest["num_bytes"],
        seconds=largest["median_seconds"],
        bus_gb_per_second=over_a_link / largest["median_seconds"] / 1e9,
        latency_seconds=latency,
        seconds_per_byte=per_byte,
        is_slept_for=sweep["is_slept_for"],
    )


def fit_line(num_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the seconds of no bytes and those of a byte, by least squares of relative errors; neither is below 0."""
    sizes, found = np.asarray(num_bytes, dtype=float), np.asarray(seconds, dtype=float)
    if len(sizes) > 1:
        per_byte, latency = np.polyfit(sizes, found, 1, w=1 / found).tolist()
        if per_byte > 0 and latency >= 0:
            return latency, per_byte
    # Of a line through 0 the relative errors are least at this mean.
    rates = sizes / found
    return 0.0, float(rates.sum() / (rates**2).sum())
