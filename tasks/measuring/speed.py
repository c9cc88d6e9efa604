"""The speedup with its interval, and where the rest went: blocks of all cells, taking turns.

First the baseline against itself (A/A), for the noise floor; then the cells and the wrapped baseline until every
speedup's interval is narrow enough or about half of the time is spent; then, in the rest, the cells beside the
counterfactuals of the waterfall.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.measuring.arms import (
    WRAPPED,
    Arm,
    Cell,
    make_data_arms,
    make_spreading_arms,
    make_trained_arm,
    make_wrapped_arm,
)
from tasks.measuring.blocks import Bench, Timed, Trials
from tasks.measuring.interleaving import Stopping, generate_rounds
from tasks.measuring.intervals import Interval, bootstrap_median_ratio, count_needed_pairs, count_needed_trials
from tasks.measuring.waterfall import compute_waterfall
from tasks.records.measurement import ArmBlocks, BlockWork, Estimate, NoiseFloor, Phase, Waterfall
from tasks.strategies import find_profile

_log = logging.getLogger(__name__)

_OVER_WRAPPED = "against the wrapped baseline: "
_SHARE_OF_SPEED = 0.55
"""Of the time: until then at most, the A/A run and the speedups have ended, where there is a waterfall to measure."""
_NOISE_ROUNDS = 7
_FEWEST_WATERFALL_ROUNDS = math.ceil(count_needed_trials(0.95) / 2)


@dataclass(frozen=True, kw_only=True)
class TimedComparison:
    """What is measured, and how long."""

    cells: Sequence[Cell]
    """The baseline first."""
    has_copy: bool
    """Whether micro-batches are copied to a device."""
    is_weak: bool
    """Whether a cell's global batch grows with its number of ranks."""
    is_exact: bool
    """Whether gradients are added up in one order instead of by DDP, which then has no counterfactuals."""
    half_width: float
    """Relative half-width asked of every speedup's interval."""
    max_seconds: float
    """Seconds for everything here."""
    block_seconds: float
    """Seconds of a block of the baseline, about."""
    seed: int
    """Of the order of the arms, the steps and the bootstrap."""

    @property
    def baseline(self) -> Cell:
        """What speedups are counted against."""
        return self.cells[0]

    @property
    def arms(self) -> list[Arm]:
        """The cells as they are trained, and the wrapped baseline; exact mode has no DDP to wrap it in."""
        around = None if self.is_exact else make_wrapped_arm(self.baseline)
        return [make_trained_arm(cell) for cell in self.cells] + ([around] if around else [])

    @property
    def spreading(self) -> list[Cell]:
        """The cells that get a waterfall: an ideal step, to be lost from, is that of one rank."""
        if self.baseline.world_size > 1:
            return []
        return [cell for cell in self.cells if cell.world_size > 1 and self._has_waterfall(cell)]

    def _has_waterfall(self, cell: Cell) -> bool:
        profile = find_profile(cell.strategy)
        return profile is not None and profile.explain_no_waterfall(is_exact=self.is_exact) is None

    @property
    def counterfactuals(self) -> list[Arm]:
        """The other arms of the waterfalls."""
        if not self.spreading:
            return []
        arms = [
            arm for cell in (self.baseline, *self.spreading) for arm in make_data_arms(cell, has_copy=self.has_copy)
        ]
        return arms + [arm for cell in self.spreading for arm in make_spreading_arms(cell)]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was found."""

    noise: NoiseFloor
    """The A/A run."""
    trials: Trials
    """The blocks of the speedups."""
    speedups: Mapping[str, Interval]
    """Name of the arm -> how many times as fast as the baseline it does a unit of work."""
    over_wrapped: Mapping[str, Interval]
    """The same against the baseline in a DDP wrapper; empty where that was not run."""
    stopped_because: str
    """Why measuring the speedups ended."""
    num_rounds: int
    """Rounds of the speedups."""
    waterfalls: list[Waterfall]
    """Of every cell that spreads an update."""
    waterfall_trials: Trials | None
    """The blocks that they are worked out from; None without one."""
    blocks: list[ArmBlocks]
    """What was done in every block of the three phases."""


def measure_speed(comparison: TimedComparison, bench: Bench, *, advance: Callable[[int], None]) -> Measured:
    """Measure; `advance` is told how many blocks more have run."""
    bench.build([*comparison.arms, *comparison.counterfactuals])
    started = time.perf_counter()
    bench.calibrate(make_trained_arm(comparison.baseline), block_seconds=comparison.block_seconds)
    _log.info("blocks of %d optimizer steps, the cells taking turns", bench.steps_per_block)
    noise, blocks = _measure_noise(comparison, bench, advance)
    spent = time.perf_counter() - started
    share = _SHARE_OF_SPEED if comparison.spreading else 1.0
    trials, stopping, num_rounds = _measure_speedups(
        comparison, bench, max(share * comparison.max_seconds - spent, 0.0), advance
    )
    blocks += _make_arm_blocks("speedup", comparison.arms, trials)
    waterfalls, rest = [], None
    if comparison.spreading:
        rest = _measure_counterfactuals(comparison, bench, started + comparison.max_seconds, advance)
        waterfalls = [_make_waterfall(comparison, bench, rest, cell) for cell in comparison.spreading]
        blocks += _make_arm_blocks("waterfall", [*comparison.arms, *comparison.counterfactuals], rest)
    intervals = stopping.intervals
    return Measured(
        noise=noise,
        trials=trials,
        speedups={name: interval for name, interval in intervals.items() if not name.startswith(_OVER_WRAPPED)},
        over_wrapped={
            name.removeprefix(_OVER_WRAPPED): interval
            for name, interval in intervals.items()
            if name.startswith(_OVER_WRAPPED)
        },
        stopped_because=stopping.reason,
        num_rounds=num_rounds,
        waterfalls=waterfalls,
        waterfall_trials=rest,
        blocks=blocks,
    )


def _make_arm_blocks(phase: Phase, arms: Sequence[Arm], trials: Trials) -> list[ArmBlocks]:
    """Return what the blocks of a phase did, arm by arm."""
    return [
        ArmBlocks(
            phase=phase,
            arm=arm.name,
            cell=arm.cell,
            kind=arm.kind,
            blocks=[_make_block_work(block.told) for block in trials.blocks[arm.name] if block.told is not None],
        )
        for arm in arms
        if arm.name in trials.blocks
    ]


def _make_block_work(told: Mapping[str, Any]) -> BlockWork:
    """Return what all ranks did in a block; sums, except of the gradient's norm, which is the whole one's on each."""
    found: Sequence[Mapping[str, Any]] = told["ranks"]

    def add_up(name: str) -> Any:
        return sum(one[name] for one in found)

    norm, loss = max(one["grad_norm_sum"] for one in found), add_up("loss_sum")
    is_recorded = all(one["exchange_bytes"] is not None for one in found)
    return BlockWork(
        **{key: told[key] for key in ("turn", "range", "steps")},
        seconds=max(one["seconds"] for one in found),
        num_samples=add_up("num_samples"),
        num_tokens=add_up("num_tokens"),
        num_targets=add_up("num_targets"),
        num_positions=add_up("num_positions"),
        num_micro_batches=add_up("num_micro_batches"),
        rows=f"{add_up('rows_digest') % 2**64:016x}",
        rows_of_first_rank=f"{found[0]['rows_digest']:016x}",
        loss_sum=loss if math.isfinite(loss) else None,
        grad_norm_sum=norm if math.isfinite(norm) else None,
        num_exchanges=[one["num_exchanges"] for one in found],
        exchange_bytes=[one["exchange_bytes"] for one in found] if is_recorded else None,
    )


def _measure_noise(
    comparison: TimedComparison, bench: Bench, advance: Callable[[int], None]
) -> tuple[NoiseFloor, list[ArmBlocks]]:
    """Run the baseline against itself, as two cells are run against each other."""
    arm = make_trained_arm(comparison.baseline)
    again = replace(arm, name=f"{arm.name} again")
    trials, order = Trials(), generate_rounds([arm.name, again.name], seed=comparison.seed)
    for _ in range(_NOISE_ROUNDS):
        bench.run_round([arm, again], order, trials)
        advance(4)
    one, other = trials.list_by_round(arm.name), trials.list_by_round(again.name)
    ratio = bootstrap_median_ratio(one, other, seed=comparison.seed)
    both = np.array([*one, *other])
    variation = float(both.std(ddof=1) / both.mean())
    noise = NoiseFloor(
        ratio=Estimate(**ratio.as_json()),
        num_pairs=len(one),
        coefficient_of_variation=variation,
        pairs_needed=count_needed_pairs(variation, comparison.half_width),
    )
    _log.info(
        "noise floor: %s against itself %.3f (%.3f to %.3f) in %d rounds; a round varies by %.1f %%",
        arm.name, ratio.value, ratio.low, ratio.high, len(one), 100 * variation,
    )  # fmt: skip
    return noise, _make_arm_blocks("noise", [arm, again], trials)


def _measure_speedups(
    comparison: TimedComparison, bench: Bench, max_seconds: float, advance: Callable[[int], None]
) -> tuple[Trials, Stopping, int]:
    """Run the cells until every interval is narrow enough or the time for them is spent."""
    arms, trials = comparison.arms, Trials()
    order = generate_rounds([arm.name for arm in arms], seed=comparison.seed + 1)
    stopping = Stopping(target_half_width=comparison.half_width, max_seconds=max_seconds)
    started, num_rounds, goes_on = time.perf_counter(), 0, True

    def look(confidence: float) -> dict[str, Interval]:
        return _compute_speedups(comparison, trials, confidence)

    while goes_on:
        bench.run_round(arms, order, trials)
        num_rounds += 1
        advance(2 * len(arms))
        goes_on = stopping.goes_on(num_rounds, seconds=time.perf_counter() - started, look=look)
    # How wide, not how fast: the gates have not been asked yet.
    _log.info("speedups: %s", stopping.reason)
    return trials, stopping, num_rounds


def _compute_speedups(comparison: TimedComparison, trials: Trials, confidence: float) -> dict[str, Interval]:
    """Return the speedup of every arm over the baseline, and of every cell over the wrapped one."""
    arms = comparison.arms
    around = next((arm for arm in arms if arm.name.endswith(WRAPPED)), None)

    def compute_ratio(arm: Arm, against: Arm) -> Interval:
        # In strong scaling both run the same rows; in weak scaling they do not, and rows differ in length.
        of = _compute_seconds_per_token if comparison.is_weak else _get_step_seconds
        return bootstrap_median_ratio(
            trials.list_by_round(against.name, of),
            trials.list_by_round(arm.name, of),
            seed=comparison.seed,
            confidence=confidence,
        )

    intervals = {arm.name: compute_ratio(arm, arms[0]) for arm in arms[1:]}
    if around is not None:
        intervals |= {_OVER_WRAPPED + arm.name: compute_ratio(arm, around) for arm in arms[1:] if arm != around}
    return intervals


def _measure_counterfactuals(
    comparison: TimedComparison, bench: Bench, deadline: float, advance: Callable[[int], None]
) -> Trials:
    """Run the cells and all counterfactuals until the time is spent."""
    arms = [arm for arm in comparison.arms if not arm.name.endswith(WRAPPED)] + comparison.counterfactuals
    order = generate_rounds([arm.name for arm in arms], seed=comparison.seed + 2)
    trials, num_rounds, mean_seconds = Trials(), 0, 0.0
    started = time.perf_counter()
    while num_rounds < _FEWEST_WATERFALL_ROUNDS or time.perf_counter() + mean_seconds < deadline:
        bench.run_round(arms, order, trials)
        num_rounds += 1
        mean_seconds = (time.perf_counter() - started) / num_rounds
        advance(2 * len(arms))
    return trials


def _make_waterfall(comparison: TimedComparison, bench: Bench, trials: Trials, cell: Cell) -> Waterfall:
    return compute_waterfall(
        trials, baseline=comparison.baseline, cell=cell, has_copy=comparison.has_copy, is_weak=comparison.is_weak,
        ddp_timers=bench.fetch_ddp_timers(make_trained_arm(cell)), seed=comparison.seed,
    )  # fmt: skip


def _get_step_seconds(block: Timed) -> float:
    return block.seconds


def _compute_seconds_per_token(block: Timed) -> float:
    return block.seconds * block.step_seconds.shape[1] / block.num_tokens
