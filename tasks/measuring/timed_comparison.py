"""What is timed of a comparison, and in which order: the speedups, then counterfactuals for where the rest went.

What is left out in a counterfactual is timed on the ranks of the last launch, beside the cells and the baseline in a
wrapper that it does not need.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.measuring.arms import (
    Arm,
    Cell,
    make_contention_arms,
    make_data_arms,
    make_spreading_arms,
    make_trained_arm,
    make_wrapped_arm,
)
from tasks.measuring.bench import Bench
from tasks.measuring.intervals import FEWEST_TURNS, estimate_ratio
from tasks.measuring.speedups import Speedups, measure_speedups
from tasks.measuring.turns import TimedBlock, TimedTurns, choose_seconds, generate_turns
from tasks.measuring.waterfall import compute_staged_waterfall, compute_waterfall
from tasks.process.failure import DistributedError, ResourceError
from tasks.records.blocks import ArmBlocks, BlockWork, Phase
from tasks.records.estimate import Estimate
from tasks.records.measurement import HELD_AGAINST_COPIES, Waterfall
from training.strategies import count_shares, find_traits

_log = logging.getLogger(__name__)

_TIMED_WAITS = 5
"""How often ranks are asked how long they waited for each other."""


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
    """Seconds for the speedups."""
    burn_in_seconds: float = 0.0
    """Seconds of each launch of the ranks before turns count."""
    tuned: Sequence[Arm] = ()
    """The baseline as one process may be faster."""
    waterfall_seconds: float
    """Seconds for the counterfactuals; 0: there are none."""
    most_share: float
    """Share of the CPUs that others may use in a quiet turn."""
    block_seconds: float
    """Seconds of a block of the baseline, about."""
    seed: int
    """Of the order of the arms and the steps."""

    @property
    def baseline(self) -> Cell:
        """What speedups are counted against."""
        return self.cells[0]

    @property
    def trained(self) -> list[Arm]:
        """The cells as they are trained, the baseline first."""
        return [make_trained_arm(cell) for cell in self.cells]

    @property
    def wrapped(self) -> list[Arm]:
        """The baseline in a wrapper, timed beside the counterfactuals; exact mode has no DDP to wrap it in."""
        around = None if self.is_exact else make_wrapped_arm(self.baseline)
        return [around] if around else []

    @property
    def arms(self) -> list[Arm]:
        """Both."""
        return self.trained + self.wrapped

    @property
    def spreading(self) -> list[Cell]:
        """The cells that get a waterfall: an ideal step, to be lost from, is that of one rank."""
        if self.baseline.world_size > 1 or not self.waterfall_seconds:
            return []
        return [
            cell
            for cell in self.cells
            if cell.world_size > 1 and not self.is_exact and find_traits(cell.strategy).no_waterfall is None
        ]

    @property
    def staged(self) -> list[Cell]:
        """The cells whose ranks are stages, held against whole copies of a plain baseline: for those there is room."""
        if self.baseline.strategy != "single" or not self.waterfall_seconds:
            return []
        return [
            cell for cell in self.cells if count_shares(cell.strategy, cell.world_size, cell.options) < cell.world_size
        ]

    @property
    def copied(self) -> list[Arm]:
        """Whole copies of the baseline on the ranks of another cell, where no waterfall has them: what that one is held
        against; left out where there is no room."""
        is_held = self.baseline.strategy in HELD_AGAINST_COPIES and self.baseline.world_size == 1
        if not self.waterfall_seconds or not is_held or self.spreading or self.staged:
            return []
        spread = [cell for cell in self.cells if cell.world_size > 1]
        return [arm for cell in spread[:1] for arm in make_contention_arms(cell)]

    @property
    def optional(self) -> list[Arm]:
        """What the baseline is held against where there is memory for it."""
        return [*self.tuned, *self.copied]

    @property
    def counterfactuals(self) -> list[Arm]:
        """The other arms of the waterfalls."""
        spreading, staged = self.spreading, self.staged
        if not spreading and not staged:
            return []
        arms = [arm for cell in (self.baseline, *spreading) for arm in make_data_arms(cell, has_copy=self.has_copy)]
        arms += [arm for cell in spreading for arm in make_spreading_arms(cell)]
        return arms + [arm for cell in staged for arm in make_contention_arms(cell)]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was found."""

    speedups: Speedups
    """The speedups, and the blocks that they are of."""
    of_baseline: dict[str, Estimate]
    """Name of the baseline in a wrapper, or as one process may be faster -> how many times as fast it is."""
    waterfalls: list[Waterfall]
    """Of every cell that spreads an update."""
    blocks: list[ArmBlocks]
    """What was done in every block of both phases."""


def measure_comparison(comparison: TimedComparison, bench: Bench, *, advance: Callable[[int], None]) -> Measured:
    """Measure; `advance` is told how many blocks more have run."""
    bench.build(comparison.trained)
    bench.calibrate(make_trained_arm(comparison.baseline), block_seconds=comparison.block_seconds)
    _log.info("blocks of %d optimizer steps, the cells taking turns", bench.steps_per_block)
    speedups = measure_speedups(
        comparison.trained, bench, half_width=comparison.half_width, max_seconds=comparison.max_seconds,
        burn_in_seconds=comparison.burn_in_seconds, most_share=comparison.most_share,
        seconds_of=choose_seconds(is_weak=comparison.is_weak), seed=comparison.seed, advance=advance,
    )  # fmt: skip
    beside = measure_counterfactuals(comparison, bench, advance)
    return Measured(
        speedups=speedups,
        of_baseline=_compare_beside(comparison, beside, [*comparison.wrapped, *comparison.tuned]),
        waterfalls=[
            compute_waterfall(
                select_turns_for(comparison, beside, cell),
                baseline=comparison.baseline,
                cell=cell,
                has_copy=comparison.has_copy,
                is_weak=comparison.is_weak,
                # What DDP timed itself on the slowest rank.
                ddp_timers=max(
                    bench.fetch_timers(make_trained_arm(cell)), key=lambda item: item.get("backward_comm", 0.0)
                ),
            )
            for cell in comparison.spreading
        ]
        + make_staged_waterfalls(comparison, bench, beside),
        blocks=_make_arm_blocks("burn-in", comparison.trained, speedups.burnt)
        + _make_arm_blocks("speedup", comparison.trained, speedups.timed_turns)
        + _make_arm_blocks("waterfall", [*comparison.arms, *comparison.optional, *comparison.counterfactuals], beside),
    )


def _make_arm_blocks(phase: Phase, arms: Sequence[Arm], timed_turns: TimedTurns) -> list[ArmBlocks]:
    """Return what the blocks of a phase did, arm by arm."""
    return [
        ArmBlocks(
            phase=phase,
            arm=arm.name,
            cell=arm.cell,
            kind=arm.kind,
            blocks=[_make_block_work(block, block.facts) for block in timed_turns.blocks[arm.name] if block.facts],
        )
        for arm in arms
        if arm.name in timed_turns.blocks
    ]


def _make_block_work(block: TimedBlock, fact: Mapping[str, Any]) -> BlockWork:
    """Return what all ranks did in a block; sums, except of the gradient's norm, which is the whole one's on each."""
    results: Sequence[Mapping[str, Any]] = fact["ranks"]
    used = [result["cpu_use"] for result in results]
    held = [item["resident_bytes"] for item in used]
    counted = ("num_samples", "num_tokens", "num_targets", "num_positions", "num_micro_batches", "num_updated")
    of_gpus = {
        "gpu_clocks_mhz": "clock_mhz", "gpu_slowed_shares": "slowed_share", "gpu_utilisations": "utilisation",
        "gpu_watts": "power_watts", "gpu_memory_gib": "peak_memory_gib",
    }  # fmt: skip
    figures = {
        "loss_sum": sum(result["loss_sum"] for result in results),
        "grad_norm_sum": max(result["grad_norm_sum"] for result in results),
        "moment_squares": sum(result["moment_squares"] for result in results),
    }
    exchanged = [result["exchange_bytes"] for result in results]
    content: dict[str, Any] = {
        **{name: sum(result[name] for result in results) for name in counted},
        **{name: [getattr(gpu, figure) for gpu in block.gpus] or None for name, figure in of_gpus.items()},
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
    }
    return BlockWork(
        **content,
        turn=block.turn,
        launch=block.launch,
        others_share=block.others_share,
        has_others_on_gpu=block.has_others_on_gpu,
        started_at=block.started_at,
        cores_used=[item["own_seconds"] / item["seconds"] for item in used],
        host_gib=None if None in held else [num_bytes / 2**30 for num_bytes in held],
        range=fact["range"],
        steps=fact["steps"],
        step_seconds=block.step_seconds.tolist(),
        seconds=max(result["seconds"] for result in results),
        rows=f"{sum(result['rows_digest'] for result in results) % 2**64:016x}",
        rows_of_first_rank=f"{results[0]['rows_digest']:016x}",
        updates=[result["updates"] for result in results],
        num_exchanges=[result["num_exchanges"] for result in results],
        exchange_bytes=None if None in exchanged else exchanged,
    )


def measure_counterfactuals(comparison: TimedComparison, bench: Bench, advance: Callable[[int], None]) -> TimedTurns:
    """Run the cells beside the wrapped baseline and all counterfactuals until the time for them is spent.

    An interval takes `FEWEST_TURNS`, whatever the time.
    """
    others, timed_turns = [*comparison.wrapped, *comparison.counterfactuals], TimedTurns()
    tuned: list[Arm] = []
    for item in comparison.optional:
        try:
            bench.build([item])
            tuned.append(item)
        except (DistributedError, ResourceError) as error:
            # Its ranks start anew after one that there is no memory for.
            _log.warning("left out: %s: %s", item.name, error)
            bench.restart(item.cell, [*comparison.trained, *tuned])
    if not others and not tuned:
        return timed_turns
    bench.build(others)
    arms = [*comparison.trained, *others, *tuned]
    order = generate_turns([arm.name for arm in arms], seed=comparison.seed + 2)
    started, num_turns, mean_seconds = time.perf_counter(), 0, 0.0
    while num_turns < FEWEST_TURNS or time.perf_counter() + mean_seconds < started + comparison.waterfall_seconds:
        bench.run_turn(arms, order, timed_turns)
        num_turns += 1
        mean_seconds = (time.perf_counter() - started) / num_turns
        advance(len(arms))
    return timed_turns


def select_quiet_turns(timed_turns: TimedTurns, most_share: float, arms: Collection[str] | None = None) -> TimedTurns:
    """Return the turns that were quiet for these arms, or for all, or every turn where those are too few for an
    interval."""
    quiet = timed_turns.select_quiet(most_share, arms=arms)
    return quiet if len(quiet.turns) >= FEWEST_TURNS else timed_turns


def select_turns_for(comparison: TimedComparison, timed_turns: TimedTurns, cell: Cell) -> TimedTurns:
    """Return the turns that were quiet for all arms of a cell and of the baseline, or every turn."""
    cells = {comparison.baseline.name, cell.name}
    arms = {arm.name for arm in [*comparison.arms, *comparison.counterfactuals] if arm.cell in cells}
    return select_quiet_turns(timed_turns, comparison.most_share, arms)


def _compare_beside(comparison: TimedComparison, beside: TimedTurns, arms: Sequence[Arm]) -> dict[str, Estimate]:
    """Return how many times as fast as the baseline each of these arms is; nothing where they were not run."""
    first, of, results = comparison.baseline.name, choose_seconds(is_weak=comparison.is_weak), {}
    for arm in arms:
        if arm.name not in beside.blocks:
            continue
        quiet = select_quiet_turns(beside, comparison.most_share, (first, arm.name))
        results[arm.name] = estimate_ratio(*([quiet.list_by_turn(name, of)] for name in (first, arm.name)))
    return results


def make_staged_waterfalls(comparison: TimedComparison, bench: Bench, timed_turns: TimedTurns) -> list[Waterfall]:
    """Return those of the cells whose ranks time how long they wait for each other."""
    results = []
    for cell in comparison.staged:
        traits = find_traits(cell.strategy)
        said = [
            traits.split_waits(bench.fetch_timers(make_trained_arm(cell)), cell.options, world_size=cell.world_size)
        ]
        if said[0] is None:
            continue
        while len(said) < _TIMED_WAITS:
            timers = bench.fetch_timers(make_trained_arm(cell))
            said.append(traits.split_waits(timers, cell.options, world_size=cell.world_size))
        waits = [item[0] for item in said if item is not None]
        results.append(
            compute_staged_waterfall(
                select_turns_for(comparison, timed_turns, cell), baseline=comparison.baseline, cell=cell, waits=waits,
                theory=said[0][1], is_weak=comparison.is_weak,
            )
        )  # fmt: skip
    return results
