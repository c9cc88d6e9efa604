"""The learning rate of every step."""

import math

from training.config import SegmentConfig, TrainingConfig


def compute_rate_in_segment(
    config: TrainingConfig, segment: SegmentConfig, segment_step: int, *, num_steps: int
) -> float:
    """Return the learning rate of a segment's step, from 1; `num_steps`: of the segment."""
    return compute_learning_rate(
        segment.schedule_begin + segment_step, segment.schedule_total or num_steps,
        peak=config.learning_rate, schedule=config.schedule, floor=config.schedule_floor,
        warmup_steps=config.warmup_steps, decay_steps=config.decay_steps,
    )  # fmt: skip


def compute_learning_rate(
    step: int, num_steps: int, *, peak: float, schedule: str, warmup_steps: int, floor: float, decay_steps: int = 0
) -> float:
    """Return the learning rate of a step (from 1) of a schedule over `num_steps`.

    It rises evenly to the peak over `warmup_steps`, then decays to `floor`, a share of the peak, which it would reach
    one step after the last: no step is wasted on a rate of 0. `decay_steps`: of wsd, which stays at the peak
    before them.
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    done = (step - warmup_steps - 1) / (num_steps - warmup_steps)
    match schedule:
        case "constant":
            return peak
        case "linear":
            left = 1 - done
        case "cosine":
            left = (1 + math.cos(math.pi * done)) / 2
        case "wsd":
            left = min(1.0, (num_steps + 1 - step) / max(min(decay_steps, num_steps - warmup_steps), 1))
        case _:
            raise ValueError(f"schedule: got {schedule!r}; allowed: constant, linear, cosine, wsd")
    return peak * (floor + (1 - floor) * left)
