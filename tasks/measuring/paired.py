"""What several ranks cost each other, from the waterfall's arms: turn by turn, one thing left out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tasks.measuring.arms import Cell, make_spreading_arms, make_trained_arm, name_data_arm
from tasks.measuring.turns import TimedTurns

Repeats = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PairedParts:
    """Figures of a cell, one per turn; seconds are of an optimizer step."""

    contention: Repeats
    """Seconds of the first rank's step beside the others / while they stand still, nothing exchanged."""
    straggler_seconds: Repeats
    """By how much the slowest rank of a step is later than one with the first rank's speed and an even share."""
    wrapper_seconds: Repeats
    """What the wrapper costs when it exchanges nothing; 0 where no step can do without an exchange."""
    beyond_share_seconds: Repeats
    """What one rank's even share takes while the others stand still, beyond that share of the baseline's step."""
    share: float
    """That share: of the baseline's step, 1 / number of ranks in strong scaling and 1 in weak scaling."""


def pair_arms(timed_turns: TimedTurns, *, baseline: Cell, cell: Cell, is_weak: bool) -> PairedParts:
    """Return what the ranks of the cell cost each other; `baseline`: one rank."""
    arms: dict[str, str] = {arm.kind: arm.name for arm in make_spreading_arms(cell)}

    def list_first_rank(kind: str) -> np.ndarray:
        return np.array(timed_turns.list_by_turn(arms[kind], lambda block: block.first_rank_seconds))

    # A step that cannot be made in silence has its own way of waiting, and copies say how far ranks are apart.
    quiet = "silent" if arms["silent"] in timed_turns.blocks else "independent"
    silent, copies, alone = (list_first_rank(kind) for kind in (quiet, "independent", "alone"))
    slowest = np.array(timed_turns.list_by_turn(arms[quiet], lambda block: block.slowest_rank_seconds))
    # Rows differ in length: the first rank has an even share of them in the mean only.
    even = np.array(timed_turns.list_by_turn(arms["independent"], lambda block: block.first_rank_share))
    share = 1.0 if is_weak else 1 / cell.world_size
    whole = np.array(list_device_seconds(timed_turns, baseline))
    if is_weak:
        whole = whole * compute_relative_tokens(timed_turns, baseline, cell)
    return PairedParts(
        contention=make_repeats(copies / alone),
        straggler_seconds=make_repeats(slowest - silent / even),
        wrapper_seconds=make_repeats(silent - copies),
        beyond_share_seconds=make_repeats(alone / even - share * whole),
        share=share,
    )


def list_device_seconds(timed_turns: TimedTurns, cell: Cell) -> Repeats:
    """Return the seconds of the cell's step with its micro-batches on the device, turn by turn."""
    return tuple(timed_turns.list_by_turn(name_data_arm(cell, "device")))


def list_copy_seconds(timed_turns: TimedTurns, cell: Cell) -> Repeats:
    """Return what copying the micro-batches of a step to the device takes of its time, turn by turn."""
    host = np.array(timed_turns.list_by_turn(name_data_arm(cell, "host")))
    return make_repeats(host - np.array(list_device_seconds(timed_turns, cell)))


def compute_relative_tokens(timed_turns: TimedTurns, baseline: Cell, cell: Cell) -> np.ndarray:
    """Return, turn by turn, the tokens of a rank of the cell against the baseline's: in weak scaling rows differ."""
    mine, theirs = (
        np.array(timed_turns.list_by_turn(make_trained_arm(one).name, lambda block: block.num_tokens)) / one.world_size
        for one in (cell, baseline)
    )
    return np.asarray(mine / theirs)


def make_repeats(values: ArrayLike) -> Repeats:
    """Return one figure per repeat."""
    return tuple(np.asarray(values, dtype=float).tolist())
