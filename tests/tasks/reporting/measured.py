"""What the stage `measure` may leave of the comparison written by hand, with figures that can be recomputed by hand.

A step takes `1proc` 68 ms and `2proc` 42 ms: 68 / 42 is a speedup of 1.619, 81 % of linear. The ideal step takes 34 ms;
of the 8 ms lost the parts explain 7.8 ms.
"""

from typing import NamedTuple

from tasks.records.cell_memory import CellMemory
from tasks.records.estimate import Estimate, Speedup, make_speedup
from tasks.records.measurement import Advice, CellSpeed, LinkSpeed, MeasurementFile, Preflight, Waterfall
from tests.tasks.reporting.borne_out import bear_out
from tests.tasks.reporting.comparison import BY_HAND

STEP_SECONDS = {"1proc": 0.068, "2proc": 0.042}
WRAPPED = "1proc in a DDP wrapper"
TOKENS_PER_STEP, SAMPLES_PER_STEP = 15.5, 4
"""Tokens: in the mean of the steps of the first range."""


def estimate(value, relative=0.025):
    """Return a figure with an interval of +- this share."""
    return Estimate(value=value, low=value * (1 - relative), high=value * (1 + relative))


class TimedArm(NamedTuple):
    """What was measured of a cell."""

    speed: CellSpeed
    speedup: Speedup | None


def arm(name, world_size, *, seconds=None, speedup=None, of_all_turns=None, of_medians=None, **changes):
    """Return a cell's figures; its step time is that of STEP_SECONDS, and its speedup follows from that."""
    seconds, first = seconds or STEP_SECONDS[name], STEP_SECONDS["1proc"]
    content = {
        "cell": name,
        "world_size": world_size,
        "global_batch_size": SAMPLES_PER_STEP,
        "num_quiet_turns": 22,
        "step_seconds": estimate(seconds, 0.01),
        "step_p50_seconds": [seconds * 0.99] * world_size,
        "step_p95_seconds": [seconds * (1.1 + 0.1 * rank) for rank in range(world_size)],
        "tokens_per_second": TOKENS_PER_STEP / seconds,
        "padded_tokens_per_second": 1.25 * TOKENS_PER_STEP / seconds,
        "samples_per_second": SAMPLES_PER_STEP / seconds,
    }
    found = speedup or estimate(first / seconds)
    given = make_speedup(
        found, of_all_turns=of_all_turns or found, of_medians=of_medians or found.value,
        baseline_step_seconds=found.value * seconds, world_size=world_size, baseline_world_size=1,
    )  # fmt: skip
    return TimedArm(CellSpeed(**BY_HAND["arm"] | content | changes), given if name != "1proc" else None)


def waterfall(cell="2proc"):
    """Return the waterfall of 2proc, or the same of 4proc, whose seconds are half as many."""
    return Waterfall.model_validate(BY_HAND["waterfalls"][cell])


def advice():
    """Return two changes of 2proc that are recommended, one that is not, and the two together."""
    return Advice.model_validate(BY_HAND["advice"])


def link(**changes):
    """Return a link of two ranks at 2 GB/s without latency."""
    return LinkSpeed(**BY_HAND["link"] | changes)


def preflight(*, is_fit=True):
    """Return a machine that was fit, or one with a warning."""
    return Preflight.model_validate(BY_HAND["fit" if is_fit else "not_fit"])


def memory(cell, **changes):
    """Return what a cell takes, half of it activations; the last rank has most, and the rehearsal says 2 % more."""
    return CellMemory.model_validate(BY_HAND["memory"][cell] | changes)


def measurement(*arms, **changes):
    """Return what was measured of these cells, by default 1proc and 2proc, with some fields changed."""
    arms = arms or (arm("1proc", 1), arm("2proc", 2))
    content = {
        "preflight": preflight(),
        "speeds": {one.speed.cell: one.speed for one in arms},
        "speedups": {one.speed.cell: one.speedup for one in arms if one.speedup},
        "beside": {WRAPPED: estimate(0.98)},
        "waterfalls": [waterfall()],
        "links": [link()],
        "advice": advice(),
        "memory": [memory("1proc"), memory("2proc")],
    }
    return MeasurementFile(**BY_HAND["measurement"] | content | changes)


def with_speedup(value, relative=0.025, **changes):
    """Return a measurement in which 2proc has this speedup and nothing ran beside the baseline."""
    two = arm("2proc", 2, seconds=STEP_SECONDS["1proc"] / value, speedup=estimate(value, relative))
    return measurement(arm("1proc", 1), two, **{"beside": {}} | changes)


def measure_again(results, found):
    """Return the results as if this had been measured."""
    cells = [
        cell.model_copy(update={"speed": found.speeds[cell.cell], "speedup": found.speedups.get(cell.cell)})
        for cell in results.cells
    ]
    return results.model_copy(update={"measurement": found.publish(()), "cells": cells})


def write_measurement(folder, found=None):
    """Write speed.json below the comparison's folder, with blocks and a training that bear it out; return it."""
    found = found or measurement()
    bear_out(folder, found).write(folder / "measurements")
    return found
