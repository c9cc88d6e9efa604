"""Which steps of the learning rate's schedule a segment has."""

from collections.abc import Mapping
from typing import NamedTuple

from tasks.params import Params


class ScheduleSpan(NamedTuple):
    """A segment's place in a schedule."""

    begin: int
    """Steps of the schedule before the segment's first."""
    total: int
    """Steps of the whole schedule."""


def list_schedule_spans(params: Params, num_rows: Mapping[str, int]) -> list[ScheduleSpan]:
    """Return the place of every segment, in the order of the run; `num_rows`: of each range."""
    train = params.train
    sizes = [
        -(-num_rows[str(part)] // train.global_batch_size) for part in params.ranges for _ in range(train.epochs)
    ]  # fmt: skip
    if train.schedule_span == "segment":
        return [ScheduleSpan(0, size) for size in sizes]
    return [ScheduleSpan(sum(sizes[:index]), sum(sizes)) for index in range(len(sizes))]


def describe_rates(params: Params, span: ScheduleSpan, *, num_steps: int) -> list[int]:
    """Return what a segment's rates depend on beside the section `train`: nothing where the schedule is its own.

    How long the run is, only where the rate has begun to decay: one more epoch or range changes no segment before that.
    """
    train = params.train
    if train.schedule_span == "segment":
        return []
    is_level = train.schedule == "constant" or (
        train.schedule == "wsd" and span.begin + num_steps <= span.total - train.decay_steps
    )
    return [min(span.begin, train.warmup_steps)] if is_level else [*span]
