"""What the raw blocks say beside the speedups: whether the lost parts add up."""

import math
from collections.abc import Sequence

from tasks.gates.counted_blocks import select_blocks
from tasks.measuring.intervals import FEWEST_TURNS, estimate_ratio
from tasks.records.arm_figures import select_arm, select_cell_arms
from tasks.records.blocks import BlockWork
from tasks.records.estimate import Estimate
from tasks.records.facts import Record
from tasks.records.lost_time import Waterfall
from tasks.records.measurement import MeasurementFile


class Residual(Record):
    """Whether the parts of a waterfall add up to what the speedup lost, which was timed in blocks of other turns."""

    cell: str
    """Name of the cell."""
    lost_efficiency: float
    """1 - parallel efficiency, by the turns of the speedup."""
    explained_efficiency: float
    """The parts' seconds / the measured step's, by the turns of the waterfall."""
    residual: Estimate
    """What the speedup lost and the parts do not explain, as a share of the step, with the interval of both."""

    @property
    def adds_up(self) -> bool:
        """Whether noise alone may be the difference."""
        return self.residual.low <= 0 <= self.residual.high


def collect_residuals(found: MeasurementFile, waterfalls: Sequence[Waterfall]) -> list[Residual]:
    """Return the residual of each waterfall that is not withheld."""
    first, residuals = select_cell_arms(found)[0], []
    for one in waterfalls:
        arm = select_arm(found, one.cell)
        seconds = [
            [_compute_seconds(found, block) for block in select_blocks(found, cell, phase="waterfall")]
            for cell in (first.cell, one.cell)
        ]
        if one.lost_efficiency is None or arm.speedup is None or min(map(len, seconds)) < FEWEST_TURNS:
            continue
        times, beside = arm.world_size / first.world_size, estimate_ratio(*([each] for each in seconds))
        lost = 1 - arm.speedup.value / times
        explained = sum(part.seconds.value for part in one.parts) / one.measured_seconds
        doubt = math.hypot(*(each.relative_half_width * each.value / times for each in (arm.speedup, beside)))
        rest = lost - explained
        residuals.append(
            Residual(
                cell=one.cell,
                lost_efficiency=lost,
                explained_efficiency=explained,
                residual=Estimate(value=rest, low=rest - doubt, high=rest + doubt),
            )
        )
    return residuals


def _compute_seconds(found: MeasurementFile, block: BlockWork) -> float:
    """Return the seconds of a unit of work: in weak scaling the blocks of a turn have different rows."""
    return block.seconds / (block.num_tokens if found.scaling == "weak" else len(block.steps))
