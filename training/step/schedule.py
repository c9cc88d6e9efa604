"""The learning rate of every step; it runs its course once per segment."""

import math


def compute_learning_rate(
    segment_step: int, num_steps: int, *, peak: float, schedule: str, warmup_steps: int, floor: float
) -> float:
    """Return the learning rate of a step (from 1) of a segment of `num_steps`.

    It rises evenly to the peak over `warmup_steps`, then decays to `floor`, a share of the peak, which it would reach
    one step after the last: no step is wasted on a rate of 0. Per segment, so that one more epoch or range changes
    nothing before it.
    """
    if segment_step <= warmup_steps:
        return peak * segment_step / warmup_steps
    done = (segment_step - warmup_steps - 1) / (num_steps - warmup_steps)
    match schedule:
        case "constant":
            return peak
        case "linear":
            left = 1 - done
        case "cosine":
            left = (1 + math.cos(math.pi * done)) / 2
        case _:
            raise ValueError(f"schedule: got {schedule!r}; allowed: constant, linear, cosine")
    return peak * (floor + (1 - floor) * left)
