"""What a measurement says of its arms: the cells in it, what they lose most to, what is left out and why."""

from ddp_audit.process.wording import Reason, explain
from tasks.process.wording import format_plural
from tasks.records.measurement import DATA_BOUND_SHARE, ArmSpeed, LostPart, Measurement, Waterfall

DATA_WAIT = "data wait"
"""Name of the part of a waterfall that is waiting for data."""


def compute_baseline_step_seconds(measurement: Measurement, arm: ArmSpeed) -> float:
    """Return the baseline's seconds per step in the turns that count for this cell, which its speedup is of."""
    if arm.speedup is None or measurement.is_per_token or measurement.scaling == "weak":
        return select_cell_arms(measurement)[0].step_seconds.value
    return arm.speedup.value * arm.step_seconds.value


def describe_quiet_turns(measurement: Measurement) -> str:
    """Return `20 of 24 turns were quiet`, or from how many to how many were, cell by cell."""
    first, *others = select_cell_arms(measurement)
    numbers = sorted(arm.num_quiet_turns or 0 for arm in others or [first])
    turns = format_plural(measurement.num_turns, "turn")
    if numbers[0] == numbers[-1]:
        return f"{numbers[0]} of {turns} were quiet"
    return f"{numbers[0]} to {numbers[-1]} of {turns}, cell by cell, were quiet"


def select_cell_arms(measurement: Measurement) -> list[ArmSpeed]:
    """Return the arms that are cells, the baseline first: all but the baseline in a wrapper."""
    return [arm for arm in measurement.arms if not arm.is_wrapped_baseline]


def select_arm(measurement: Measurement, cell: str) -> ArmSpeed:
    """Return the arm of a cell as it is trained. Raises StopIteration for an unknown cell."""
    return next(arm for arm in select_cell_arms(measurement) if arm.cell == cell)


def find_largest_part(waterfall: Waterfall) -> LostPart | None:
    """Return the part that costs most, if any costs something."""
    parts = [part for part in waterfall.parts if part.seconds.value > 0]
    return max(parts, key=lambda part: part.seconds.value, default=None)


def find_data_wait(measurement: Measurement, cell: str, *, baseline: str) -> Reason | None:
    """Return what is wrong if the cell was data-bound in the measured blocks."""
    share = select_arm(measurement, cell).data_wait_share
    if share is not None and share > DATA_BOUND_SHARE:
        return explain(
            "waited_when_measured", "{cell} waited for data in {share:small_percent} of its measured blocks",
            cell=cell, share=share,
        )  # fmt: skip
    waterfall = next((one for one in measurement.waterfalls if one.cell == cell and one.is_data_bound), None)
    if waterfall is None:
        return None
    lost = next((part.seconds.value for part in waterfall.parts if part.name == DATA_WAIT), 0.0)
    if lost / waterfall.measured_seconds > DATA_BOUND_SHARE:
        return explain(
            "step_lost_to_data", "{cell} loses {share:small_percent} of its measured step to waiting for data",
            cell=cell, share=lost / waterfall.measured_seconds,
        )  # fmt: skip
    return explain(
        "waterfall_data_bound",
        "{cell} or {baseline} waited for data in more than {most:percent} of its measured blocks",
        cell=cell, baseline=baseline, most=DATA_BOUND_SHARE,
    )  # fmt: skip


def select_imprecise_arms(measurement: Measurement) -> list[ArmSpeed]:
    """Return the cells whose speedup has a wider interval than was asked for."""
    return [
        arm
        for arm in select_cell_arms(measurement)
        if arm.speedup is not None and arm.speedup.relative_half_width > measurement.half_width_asked
    ]


def explain_omission(measurement: Measurement, what: str) -> str | None:
    """Return the sentence that says why there is nothing of this kind, if there is one."""
    return next((sentence for sentence in measurement.left_out if what in sentence.lower()), None)
