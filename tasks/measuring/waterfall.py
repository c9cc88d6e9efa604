"""Where the time of a cell goes: from the ideal step to the measured one, each part by a counterfactual run.

The arms form a chain in which each leaves out one thing more than the one before (tasks/measuring/arms.py), so that the
difference of two neighbours is what that one thing costs. "One rank" is the first, whose device is the baseline's, with
its even share of the work: by how much another one is slower, or has more to do, is the straggler. Data, copies and the
update are there on one rank as well; of them only what does not shrink with the number of ranks is lost.
"""

from collections.abc import Callable, Mapping, Sequence

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
from tasks.measuring.turns import TimedBlock, TimedTurns
from tasks.records.estimate import Estimate
from tasks.records.measurement import DATA_BOUND_SHARE, LostPart, Waterfall

COPY, WRAPPER = "host-to-device copy", "DDP overhead"
WAITING = "waiting for other stages"

_STANDS = 1e9
"""Weight of a level that the others, which have 1, cannot move."""


def compute_waterfall(
    timed_turns: TimedTurns, *, baseline: Cell, cell: Cell, has_copy: bool, is_weak: bool,
    ddp_timers: Mapping[str, float],
) -> Waterfall:  # fmt: skip
    """Return what the cell loses against the ideal, in seconds per step; `ddp_timers`: what DDP timed itself."""
    at = _compute_figures(timed_turns, baseline, cell, has_copy=has_copy, is_weak=is_weak)
    ranks_ratio = cell.world_size / baseline.world_size
    share = 1.0 if is_weak else 1 / ranks_ratio

    fixed_update = at["update"] * (1 - share)
    # Each a linear function of the arms' seconds: its mean is that of the arms' means.
    chain = [
        (
            "data wait", "the loader as in training against micro-batches made before the clock starts",
            at["measured"] - at["host"] - (at["baseline"] - at["baseline_host"]) * share,
        ),
        (
            COPY, "micro-batches waiting on the host against micro-batches waiting on the device",
            at["host"] - at["device"] - (at["baseline_host"] - at["baseline_device"]) * share,
        ),
        (
            "exposed communication",
            "gradients exchanged against every rank keeping its own, its slowest rank step by step",
            at["device"] - at["silent_slowest"],
        ),
        (
            "straggler", "the slowest rank of each step against the first, without communication",
            at["silent_slowest"] - at["silent"],
        ),
        (
            WRAPPER, "the first rank inside the wrapper, without communication, against its plain copy",
            at["silent"] - at["copies"],
        ),
        (
            "contention", "the first rank's copy beside the others against the same while they stand still",
            at["copies"] - at["alone"],
        ),
        ("optimizer", "clipping and optimizer alone: every rank does all of it", fixed_update),
        (
            "fixed", "one copy's share of the step against its share of the baseline's step, without the optimizer",
            at["alone"] - at["baseline_device"] * share - fixed_update,
        ),
    ]  # fmt: skip
    chain = [link for link in chain if has_copy or link[0] != COPY]
    results = [estimate_mean([lost.tolist()]) for *_, lost in chain]
    parts = [
        LostPart(name=name, seconds=seconds, how=how)
        for (name, how, _), seconds in zip(chain, _compute_losses(results), strict=True)
    ]
    measured, ideal = (float(np.mean(seconds)) for seconds in (at["measured"], at["baseline"] * share))
    waits = [compute_data_wait_share(timed_turns, make_trained_arm(item)) for item in (baseline, cell)]
    # Beside its own arm alone: what another pair of arms varies by says nothing of this one.
    own = estimate_mean([(at["measured"] - at["host"]).tolist()])
    exposed = None
    if ddp_timers:
        exposed = max(ddp_timers["backward_comm"] - ddp_timers["backward_compute_comm_overlap"], 0.0)
    return _make_waterfall(
        cell, parts, ideal=ideal, measured=measured, data_wait=max(own.low / measured, *waits), exposed=exposed
    )


def compute_staged_waterfall(
    timed_turns: TimedTurns, *, baseline: Cell, cell: Cell, waits: Sequence[float], theory: str, is_weak: bool
) -> Waterfall:
    """Return what a cell loses whose stages cannot run without each other.

    `waits`: by repeat, the seconds of a step in which the mean rank waits for others; `theory`: what they would be of
    stages alike. The lost seconds of the mean rank are those of the step, since all begin and end it together.
    """
    own, plain = make_trained_arm(cell), make_trained_arm(baseline)
    copies, alone = (arm.name for arm in make_contention_arms(cell))
    share = 1.0 if is_weak else baseline.world_size / cell.world_size
    work = compute_relative_tokens(timed_turns, baseline, cell) if is_weak else np.ones(1)
    measured, ideal = (np.array(timed_turns.list_by_turn(arm.name)) for arm in (own, plain))
    beside, by_itself = (
        np.array(timed_turns.list_by_turn(arm, lambda block: block.first_rank_seconds)) for arm in (copies, alone)
    )
    even = np.array(timed_turns.list_by_turn(copies, lambda block: block.first_rank_share))
    parts = []
    for name, seconds, how in (
        (WAITING, np.array(waits), f"the passes of all ranks against what each of them computed; {theory}"),
        (
            "contention", (beside - by_itself) / even,
            "the first rank's whole copy beside the others against the same while they stand still",
        ),
    ):  # fmt: skip
        lost = estimate_mean([seconds.tolist()])
        ends = (max(end, 0.0) for end in (lost.value, lost.low, lost.high))
        parts.append(LostPart(name=name, seconds=Estimate(*ends), how=how))
    return _make_waterfall(
        cell, parts, ideal=float(np.mean(ideal * work * share)), measured=float(np.mean(measured)),
        data_wait=max(compute_data_wait_share(timed_turns, arm) for arm in (plain, own)), exposed=None,
    )  # fmt: skip


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


def reconcile(waterfall: Waterfall, *, measured: float, efficiency: float) -> Waterfall:
    """Return the waterfall as part of the speedup's account: its step and what that loses are those of the speedup's
    turns, the parts those of their own turns in proportion, and what they do not explain is told."""
    times, exposed = measured / waterfall.measured_seconds, waterfall.ddp_exposed_communication_seconds
    parts = [part.model_copy(update={"seconds": part.seconds.times(times)}) for part in waterfall.parts]
    return waterfall.model_copy(
        update={
            "ideal_seconds": measured * efficiency, "measured_seconds": measured, "parts": parts,
            "ddp_exposed_communication_seconds": exposed and times * exposed,
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

    def read(arm: str, of: Callable[[TimedBlock], float] = lambda block: block.seconds) -> np.ndarray:
        return np.array(timed_turns.list_by_turn(arm, of))

    # Rows differ in length: the first rank has an even share of the work in the mean of many steps only, or never.
    even = read(copies, lambda block: block.first_rank_share)
    work = compute_relative_tokens(timed_turns, baseline, cell) if is_weak else np.ones(1)
    of_first_rank = {"silent": silent, "copies": copies, "alone": alone, "update": update}
    return {
        "baseline": read(make_trained_arm(baseline).name) * work,
        "baseline_host": read(name_data_arm(baseline, host)) * work,
        "baseline_device": read(name_data_arm(baseline, "device")) * work,
        "measured": read(make_trained_arm(cell).name),
        "host": read(name_data_arm(cell, host)),
        "device": read(name_data_arm(cell, "device")),
        "silent_slowest": read(silent, lambda block: block.slowest_rank_seconds),
        **{
            name: read(arm, lambda block: block.first_rank_seconds) / (1 if name == "update" else even)
            for name, arm in of_first_rank.items()
        },
    }


def compute_relative_tokens(timed_turns: TimedTurns, baseline: Cell, cell: Cell) -> np.ndarray:
    """Return, turn by turn, the tokens of a rank of the cell against the baseline's: in weak scaling rows differ."""
    mine, its = (
        np.array(timed_turns.list_by_turn(item.name, lambda block: block.num_tokens)) / item.world_size
        for item in (cell, baseline)
    )
    return np.asarray(mine / its)


def compute_data_wait_share(timed_turns: TimedTurns, arm: Arm) -> float:
    """Return the share of an arm's blocks in which it waited for the loader."""
    blocks = timed_turns.blocks[arm.name]
    return sum(block.data_wait_seconds for block in blocks) / sum(block.seconds for block in blocks)
