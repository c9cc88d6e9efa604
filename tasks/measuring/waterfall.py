"""Where the time of a cell goes: from the ideal step to the measured one, each part by a counterfactual run.

The arms form a chain in which each leaves out one thing more than the one before (tasks/measuring/arms.py), so that the
difference of two neighbours is what that one thing costs. "One rank" is the first, whose device is the baseline's, with
its even share of the work: by how much another one is slower, or has more to do, is the straggler. Data, copies and the
update are there on one rank as well; of them only what does not shrink with the number of ranks is lost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from tasks.measuring.arms import (
    Arm,
    Cell,
    make_contention_arms,
    make_spreading_arms,
    make_trained_arm,
    name_data_arm,
)
from tasks.measuring.intervals import estimate_mean
from tasks.measuring.turns import TimedTurns
from tasks.records.estimate import Estimate
from tasks.records.measurement import DATA_BOUND_SHARE, LostPart, Waterfall

COPY, WRAPPER = "host-to-device copy", "DDP overhead"
WAITING = "waiting for other stages"

_STANDS = 1e9
"""Weight of a level that the others, which have 1, cannot move."""

_Turns = Mapping[str, np.ndarray]
"""Arm -> its seconds per step, turn by turn."""


@dataclass(frozen=True, kw_only=True)
class _Link:
    """One part of the chain, as a linear function of the arms' seconds: its mean is that of the arms' means."""

    name: str
    how: str
    lost: Callable[[_Turns], np.ndarray]


def compute_waterfall(
    timed_turns: TimedTurns, *, baseline: Cell, cell: Cell, has_copy: bool, is_weak: bool,
    ddp_timers: Mapping[str, float],
) -> Waterfall:  # fmt: skip
    """Return what the cell loses against the ideal, in seconds per step; `ddp_timers`: what DDP timed itself."""
    figures = _compute_figures(timed_turns, baseline, cell, has_copy=has_copy, is_weak=is_weak)
    ranks_ratio = cell.world_size / baseline.world_size
    share = 1.0 if is_weak else 1 / ranks_ratio

    def estimate(statistic: Callable[[_Turns], np.ndarray]) -> Estimate:
        return estimate_mean([statistic(figures).tolist()])

    copy = _Link(
        name=COPY,
        how="micro-batches waiting on the host against micro-batches waiting on the device",
        lost=lambda at: at["host"] - at["device"] - (at["baseline_host"] - at["baseline_device"]) * share,
    )
    chain = [
        _Link(
            name="data wait",
            how="the loader as in training against micro-batches made before the clock starts",
            lost=lambda at: at["measured"] - at["host"] - (at["baseline"] - at["baseline_host"]) * share,
        ),
        *([copy] if has_copy else []),
        _Link(
            name="exposed communication",
            how="gradients exchanged against every rank keeping its own, its slowest rank step by step",
            lost=lambda at: at["device"] - at["silent_slowest"],
        ),
        _Link(
            name="straggler",
            how="the slowest rank of each step against the first, without communication",
            lost=lambda at: at["silent_slowest"] - at["silent"],
        ),
        _Link(
            name=WRAPPER,
            how="the first rank inside the wrapper, without communication, against its plain copy",
            lost=lambda at: at["silent"] - at["copies"],
        ),
        _Link(
            name="contention",
            how="the first rank's copy beside the others against the same while they stand still",
            lost=lambda at: at["copies"] - at["alone"],
        ),
        _Link(
            name="optimizer",
            how="clipping and optimizer alone: every rank does all of it",
            lost=lambda at: at["update"] * (1 - share),
        ),
        _Link(
            name="fixed",
            how="one copy's share of the step against its share of the baseline's step, without the optimizer",
            lost=lambda at: at["alone"] - at["baseline_device"] * share - at["update"] * (1 - share),
        ),
    ]
    results = [estimate(link.lost) for link in chain]
    seconds = _compute_losses(results)
    parts = [
        LostPart(name=link.name, seconds=second, how=link.how) for link, second in zip(chain, seconds, strict=True)
    ]
    measured = estimate(lambda at: at["measured"]).value
    ideal = estimate(lambda at: at["baseline"] * share).value
    waits = [compute_data_wait_share(timed_turns, make_trained_arm(item)) for item in (baseline, cell)]
    return _make_waterfall(
        cell, parts, ideal=ideal, measured=measured, data_wait=max(results[0].low / measured, *waits),
        exposed=_compute_exposed_seconds(ddp_timers),
    )  # fmt: skip


def compute_staged_waterfall(
    timed_turns: TimedTurns, *, baseline: Cell, cell: Cell, waits: Sequence[float], theory: str, is_weak: bool
) -> Waterfall:
    """Return what a cell loses whose stages cannot run without each other.

    `waits`: by repeat, the seconds of a step in which the mean rank waits for others; `theory`: what they would be of
    stages alike. The lost seconds of the mean rank are those of the step, since all begin and end it together.
    """
    copies, alone = make_contention_arms(cell)
    share = 1.0 if is_weak else baseline.world_size / cell.world_size
    work = compute_relative_tokens(timed_turns, baseline, cell) if is_weak else np.ones(1)
    measured = np.array(timed_turns.list_by_turn(make_trained_arm(cell).name))
    ideal = np.array(timed_turns.list_by_turn(make_trained_arm(baseline).name)) * work * share
    beside, by_itself = (
        np.array(timed_turns.list_by_turn(arm.name, lambda block: block.first_rank_seconds)) for arm in (copies, alone)
    )
    even = np.array(timed_turns.list_by_turn(copies.name, lambda block: block.first_rank_share))
    results = [
        (WAITING, waits, f"the passes of all ranks against what each of them computed; {theory}"),
        (
            "contention",
            ((beside - by_itself) / even).tolist(),
            "the first rank's whole copy beside the others against the same while they stand still",
        ),
    ]
    parts = [
        LostPart(
            name=name,
            seconds=Estimate(value=max(item.value, 0.0), low=max(item.low, 0.0), high=max(item.high, 0.0)),
            how=how,
        )
        for name, seconds, how in results
        for item in [estimate_mean([list(seconds)])]
    ]
    mean, least = (estimate_mean([seconds.tolist()]).value for seconds in (measured, ideal))
    data_wait = max(compute_data_wait_share(timed_turns, make_trained_arm(item)) for item in (baseline, cell))
    return _make_waterfall(cell, parts, ideal=least, measured=mean, data_wait=data_wait, exposed=None)


def _make_waterfall(
    cell: Cell, parts: list[LostPart], *, ideal: float, measured: float, data_wait: float, exposed: float | None
) -> Waterfall:
    return Waterfall(
        cell=cell.name,
        ideal_seconds=ideal,
        measured_seconds=measured,
        parts=parts,
        ddp_exposed_communication_seconds=exposed,
        is_data_bound=data_wait > DATA_BOUND_SHARE,
    )


def settle(waterfall: Waterfall, *, measured: float, efficiency: float) -> Waterfall:
    """Return the waterfall as part of the speedup's account: its step and what that loses are those of the speedup's
    turns, the parts those of their own turns in proportion, and what they do not explain is told."""
    times, ideal = measured / waterfall.measured_seconds, measured * efficiency
    parts = [part.model_copy(update={"seconds": part.seconds.times(times)}) for part in waterfall.parts]
    exposed = waterfall.ddp_exposed_communication_seconds
    return waterfall.model_copy(
        update={
            "ideal_seconds": ideal, "measured_seconds": measured, "parts": parts,
            "ddp_exposed_communication_seconds": None if exposed is None else times * exposed,
        }
    )  # fmt: skip


def _compute_losses(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return the parts as losses, none below 0.

    Neighbours in the chain share an arm: noise in it makes one part too small and the other too large by as much. Where
    a part is below 0 and may be noise, the arms around it are levelled out, so that the parts still add up (isotonic
    regression; Barlow et al. 1972); the interval then reaches over both values. One that is below 0 beyond doubt is an
    effect that the chain does not know; it is no loss, and stays unexplained.
    """
    values = np.array([0.0 if result.high < 0 else result.value for result in estimates])
    # The two ends are the ideal step and the measured one, which stand.
    weights = np.concatenate([[_STANDS], np.ones(len(values) - 1), [_STANDS]])
    levels = isotonic_regression(np.concatenate([[0.0], values]).cumsum(), weights=weights).x
    losses = []
    for item, loss in zip(estimates, np.diff(levels).tolist(), strict=True):
        moved = 0.0 if item.high < 0 else loss - item.value
        low, high = min(item.low, item.low + moved), max(item.high, item.high + moved)
        losses.append(Estimate(value=loss, low=max(low, 0.0), high=max(high, 0.0)))
    return losses


def _compute_figures(
    timed_turns: TimedTurns, baseline: Cell, cell: Cell, *, has_copy: bool, is_weak: bool
) -> dict[str, np.ndarray]:
    """Return, turn by turn, the seconds per step that the chain is made of."""
    silent, copies, alone, update = (arm.name for arm in make_spreading_arms(cell))
    host = "host" if has_copy else "device"
    # Rows differ in length: the first rank has an even share of the work in the mean of many steps only, or never.
    share = np.array(timed_turns.list_by_turn(copies, lambda block: block.first_rank_share))
    work = compute_relative_tokens(timed_turns, baseline, cell) if is_weak else np.ones(1)

    def scale_baseline(arm: str) -> np.ndarray:
        return np.asarray(np.array(timed_turns.list_by_turn(arm)) * work)

    def scale_first_rank(arm: str, share: np.ndarray = share) -> np.ndarray:
        return np.asarray(np.array(timed_turns.list_by_turn(arm, lambda block: block.first_rank_seconds)) / share)

    results = {
        "baseline": scale_baseline(make_trained_arm(baseline).name),
        "baseline_host": scale_baseline(name_data_arm(baseline, host)),
        "baseline_device": scale_baseline(name_data_arm(baseline, "device")),
        "measured": timed_turns.list_by_turn(make_trained_arm(cell).name),
        "host": timed_turns.list_by_turn(name_data_arm(cell, host)),
        "device": timed_turns.list_by_turn(name_data_arm(cell, "device")),
        "silent_slowest": timed_turns.list_by_turn(silent, lambda block: block.slowest_rank_seconds),
        "silent": scale_first_rank(silent),
        "copies": scale_first_rank(copies),
        "alone": scale_first_rank(alone),
        "update": scale_first_rank(update, np.ones(1)),
    }
    return {name: np.asarray(figures) for name, figures in results.items()}


def compute_relative_tokens(timed_turns: TimedTurns, baseline: Cell, cell: Cell) -> np.ndarray:
    """Return, turn by turn, the tokens of a rank of the cell against the baseline's: in weak scaling rows differ."""
    mine, theirs = (
        np.array(timed_turns.list_by_turn(make_trained_arm(item).name, lambda block: block.num_tokens))
        / item.world_size
        for item in (cell, baseline)
    )
    return np.asarray(mine / theirs)


def compute_data_wait_share(timed_turns: TimedTurns, arm: Arm) -> float:
    """Return the share of an arm's blocks in which it waited for the loader."""
    blocks = timed_turns.blocks[arm.name]
    return sum(block.data_wait_seconds for block in blocks) / sum(block.seconds for block in blocks)


def _compute_exposed_seconds(timers: Mapping[str, Any]) -> float | None:
    if not timers:
        return None
    return float(max(timers["backward_comm"] - timers["backward_compute_comm_overlap"], 0.0))
