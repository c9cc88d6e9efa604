"""Which timed blocks a published speedup is of: told from the blocks themselves, not by what counted them."""

from collections import Counter
from itertools import pairwise

from tasks.records.blocks import BlockWork
from tasks.records.measurement import MeasurementFile


def select_blocks(measurement: MeasurementFile, cell: str, *, phase: str | None = None) -> list[BlockWork]:
    """Return the blocks of the cell as it is trained."""
    return [
        block
        for arm in measurement.blocks
        if arm.cell == cell and arm.kind == "as trained" and phase in (None, arm.phase)
        for block in arm.blocks
    ]


def select_counted(measurement: MeasurementFile, cell: str) -> list[BlockWork]:
    """Return the blocks that the speedup is of: those of quiet turns, of starts with two of them or more.

    All blocks where no cell has a speedup, for want of such.
    """
    blocks = {arm.cell: select_blocks(measurement, arm.cell, phase="speedup") for arm in measurement.arms}
    if all(arm.speedup is None for arm in measurement.arms if not arm.is_wrapped_baseline):
        return blocks[cell]
    most = measurement.most_others_share
    loud = {one.turn for every in blocks.values() for one in every if _is_loud(one, most)}
    quiet = [one for one in blocks[cell] if one.turn not in loud]
    turns = Counter(one.launch for one in quiet)
    return [one for one in quiet if turns[one.launch] > 1]


def _is_loud(block: BlockWork, most: float) -> bool:
    return (block.others_share or 0.0) > most or (block.has_others_on_gpu and most < 1)


def find_missing_turns(measurement: MeasurementFile, cell: str) -> str | None:
    """Return what is wrong if not every turn that was run for the speedups has a block of the cell.

    Turns are numbered as they run: whoever leaves out slow ones leaves gaps.
    """
    turns = sorted(one.turn for one in select_blocks(measurement, cell, phase="speedup"))
    launches = {one.launch for one in select_blocks(measurement, cell, phase="speedup")}
    for before, after in pairwise(turns):
        if after != before + 1:
            return f"{cell}: turn {before + 1} has no block among those of the speedups, {before} and {after} have"
    if (len(turns), len(launches)) != (measurement.num_turns, measurement.num_launches):
        return (
            f"{cell}: {len(turns)} turns of {len(launches)} starts are among the blocks of the speedups, "
            f"{measurement.num_turns} of {measurement.num_launches} were run"
        )
    return None
