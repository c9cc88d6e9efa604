"""What the raw blocks say beside the speedups: every paired block by itself, and whether the lost parts add up."""

import math
from collections.abc import Callable, Collection, Sequence

from tasks.measuring.account import make_estimate
from tasks.measuring.blocks import Timed, Trials, is_quiet
from tasks.measuring.intervals import FEWEST_TURNS, estimate_ratio
from tasks.measuring.reanalyse import make_trials
from tasks.records.facts import Record
from tasks.records.measurement import Estimate, MeasurementFile, Waterfall


class PairedBlock(Record):
    """One block of a cell beside the baseline's block of the same turn, which ran the same steps."""

    cell: str
    """Name of the cell."""
    turn: int
    """Number of the turn, in the order of time."""
    launch: int
    """Which start of the ranks ran it, from 1."""
    speedup: float
    """The baseline's seconds per unit of work / the cell's, of these two blocks alone."""
    is_quiet: bool
    """Whether the turn counts: others used no more of the CPUs in it than a quiet turn allows."""


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


def collect_paired_blocks(found: MeasurementFile, withheld: Collection[str]) -> list[PairedBlock]:
    """Return every block of the speedups of the cells that are not withheld; nothing if the first cell is."""
    trials = _read_trials(found, "speedup")
    first, *others = [arm.cell for arm in found.arms if not arm.is_wrapped_baseline]
    if first in withheld:
        return []
    seconds = _choose_seconds(found)
    pairs = []
    for turn, blocks in trials.turns.items():
        by_arm = {block.arm: block for block in blocks}
        is_counted = all(is_quiet(block, found.most_others_share) for block in blocks)
        pairs += [
            PairedBlock(
                cell=cell, turn=turn, launch=by_arm[cell].launch, is_quiet=is_counted,
                speedup=seconds(by_arm[first]) / seconds(by_arm[cell]),
            )
            for cell in others
            if cell not in withheld and first in by_arm and cell in by_arm
        ]  # fmt: skip
    return pairs


def collect_residuals(found: MeasurementFile, waterfalls: Sequence[Waterfall]) -> list[Residual]:
    """Return the residual of each waterfall that is not withheld."""
    trials = _read_trials(found, "waterfall")
    quiet = trials.select_quiet(found.most_others_share)
    counted, seconds = quiet if len(quiet.turns) >= FEWEST_TURNS else trials, _choose_seconds(found)
    first = next(arm for arm in found.arms if not arm.is_wrapped_baseline)
    residuals = []
    for one in waterfalls:
        arm = next(arm for arm in found.arms if arm.cell == one.cell and not arm.is_wrapped_baseline)
        if one.lost_efficiency is None or arm.speedup is None or not {first.arm, arm.arm} <= counted.blocks.keys():
            continue
        times = arm.world_size / first.world_size
        blocks = [[counted.list_by_turn(name, seconds)] for name in (first.arm, arm.arm)]
        beside = make_estimate(estimate_ratio(*blocks))
        lost = 1 - arm.speedup.value / times
        explained = sum(part.seconds.value for part in one.parts) / one.measured_seconds
        doubt = math.hypot(*(each.relative_half_width * each.value / times for each in (arm.speedup, beside)))
        residuals.append(
            Residual(
                cell=one.cell, lost_efficiency=lost, explained_efficiency=explained,
                residual=Estimate(
                    value=lost - explained, low=lost - explained - doubt, high=lost - explained + doubt
                ),
            )
        )  # fmt: skip
    return residuals


def _read_trials(found: MeasurementFile, phase: str) -> Trials:
    return make_trials([arm for arm in found.blocks if arm.phase == phase])


def _choose_seconds(found: MeasurementFile) -> Callable[[Timed], float]:
    """Return the seconds of a unit of work: in weak scaling the arms of a turn have different rows."""
    if found.scaling == "weak":
        return lambda block: block.seconds * block.step_seconds.shape[1] / block.num_tokens
    return lambda block: block.seconds
