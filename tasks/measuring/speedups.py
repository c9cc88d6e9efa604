"""The speedups, by blocks of all cells in turns, over several launches: `measure_speedups` runs the blocks, `estimate`
makes intervals of the turns that count (intervals.py), `make_records` the speedups of those.

It ends once every interval is narrow enough, or the time for it is spent. A launch begins with turns that do not count:
its first seconds are slower than hours of training (clocks, allocators, caches). Then it has few turns, however long
it took to begin: turns of one launch are alike, and what narrows an interval is more launches.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tasks.measuring.arms import Arm
from tasks.measuring.bench import Bench
from tasks.measuring.intervals import (
    FEWEST_LAUNCHES,
    FEWEST_TURNS,
    count_needed_launches,
    estimate_speedup,
)
from tasks.measuring.turns import TimedBlock, TimedTurns, generate_turns, is_quiet
from tasks.process import wording
from tasks.records.estimate import Estimate, Speedup, make_speedup
from tasks.records.measurement import CellSpeed

_log = logging.getLogger(__name__)

FEWEST_QUIET_TURNS = 2
"""Of a launch that counts."""
_TURNS = 4
"""Quiet turns of a launch."""
_MOST_TURNS = 12
"""Of a launch: where so few are quiet that it has not enough by then, another one is as good."""
_MOST_TURNS_LATE = 3
"""Turns of a launch for each quiet one that it needs, once `max_seconds` are spent: a few more cost less than no
interval."""


@dataclass(kw_only=True)
class Speedups:
    """What was found of the speedups."""

    timed_turns: TimedTurns = field(default_factory=TimedTurns)
    """All turns."""
    arms: Sequence[str]
    """Names, the baseline's first."""
    most_share: float
    """Share of the CPUs that others may use in a quiet turn."""
    seconds_of: Callable[[TimedBlock], float]
    """Seconds of a unit of work in a block."""
    burnt: TimedTurns = field(default_factory=TimedTurns)
    """The turns with which each launch of the ranks begins and that do not count."""
    num_launches: int = 1
    """Launches of every cell's ranks."""
    intervals: Mapping[str, Estimate] = field(default_factory=dict)
    """Name of the arm -> how many times as fast as the baseline it is, over its quiet turns; none of an arm without
    enough."""
    stopped_because: str = ""
    """What was spent, and why it ended, in one sentence."""

    @property
    def baseline(self) -> str:
        """The arm that the others are compared with."""
        return self.arms[0]

    def select_quiet(self, arm: str) -> TimedTurns:
        """Return the turns in which the arm's block and the baseline's were quiet, of launches with two or more.

        What others did during the block of a third arm is no reason to set these two aside: the more cells there are,
        the fewer turns would be quiet for all of them.
        """
        pair = (self.baseline, arm)
        return self.timed_turns.select_quiet(self.most_share, arms=pair, fewest_of_launch=FEWEST_QUIET_TURNS)

    def select_counted(self, arm: str) -> TimedTurns:
        """Return the turns that the arm's figures are of: those of its speedup, the baseline's those of any speedup;
        all where there is none."""
        counted = list(self.intervals) if arm == self.baseline else [name for name in self.intervals if name == arm]
        return self.timed_turns.select_turns(self.find_quiet_turns(counted)) if counted else self.timed_turns

    def counts(self, arm: str) -> bool:
        """Return whether the arm counts for the noise: the baseline, and others with an interval, if any has one."""
        return arm == self.baseline or arm in self.intervals or not self.intervals

    def find_quiet_turns(self, arms: Iterable[str]) -> set[int]:
        """Return the turns that are quiet for one of these arms and the baseline."""
        return {turn for arm in arms for turn in self.select_quiet(arm).turns}

    def estimate(self, select: Callable[[str], TimedTurns]) -> dict[str, Estimate]:
        """Return how many times as fast as the baseline the other arms are, each in the turns that `select` has for it;
        of fewer than `FEWEST_LAUNCHES` there is none."""
        results = {}
        for arm in self.arms[1:]:
            timed_turns = select(arm)
            first, other = (timed_turns.list_by_launch(name, self.seconds_of) for name in (self.baseline, arm))
            if len(first) >= FEWEST_LAUNCHES:
                results[arm] = estimate_speedup(first, other)
        return results

    def make_records(self, speeds: Mapping[str, CellSpeed], *, is_weak: bool) -> dict[str, Speedup]:
        """Return the speedup of each cell that has an interval, and what follows from it."""
        results = dict[str, Speedup]()
        first, every = speeds[self.baseline], self.estimate(lambda _: self.timed_turns)
        for cell, interval in self.intervals.items():
            quiet, speed = self.select_quiet(cell), speeds[cell]
            figures, others = (np.median(quiet.list_by_turn(arm, self.seconds_of)) for arm in (self.baseline, cell))
            # In weak scaling a speedup is no ratio of steps.
            beside = first.step_seconds.value if is_weak else interval.value * speed.step_seconds.value
            results[cell] = make_speedup(
                interval,
                of_all_turns=every[cell],
                of_medians=float(figures / others),
                baseline_step_seconds=beside,
                world_size=speed.world_size,
                baseline_world_size=first.world_size,
            )
        return results


def measure_speedups(
    arms: Sequence[Arm],
    bench: Bench,
    *,
    half_width: float,
    max_seconds: float,
    burn_in_seconds: float,
    most_share: float,
    seconds_of: Callable[[TimedBlock], float],
    seed: int,
    advance: Callable[[int], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Speedups:
    """Measure how many times as fast as the first arm the others are; their ranks have been started and built.

    `half_width`: relative, of the widest interval. `max_seconds`: no launch begins that would end later, at the mean
    seconds of those before; three run in any case. `burn_in_seconds`: of each launch, before turns
    count. `seconds_of`: of a unit of work, in a block. `advance` is told of blocks that have run.
    """
    speedups = Speedups(arms=[arm.name for arm in arms], most_share=most_share, seconds_of=seconds_of)
    order = generate_turns(speedups.arms, seed=seed)
    started = clock()
    while not speedups.stopped_because:
        if speedups.timed_turns.blocks:
            bench.launch_again(arms)
            speedups.num_launches += 1
        burning = clock()
        while clock() - burning < burn_in_seconds:
            bench.run_turn(arms, order, speedups.burnt)
            advance(len(arms))
        _run_launch(speedups, arms, bench, order, lambda: clock() - started > max_seconds, advance)
        if speedups.num_launches >= FEWEST_LAUNCHES or len(arms) == 1:
            seconds = clock() - started
            is_spent = seconds * (speedups.num_launches + 1) / speedups.num_launches > max_seconds
            speedups.intervals = speedups.estimate(speedups.select_quiet)
            speedups.stopped_because = _explain_stop(speedups, half_width, seconds, max_seconds, is_spent)
    _log.info("speedups: %s", speedups.stopped_because)
    return speedups


def _run_launch(
    speedups: Speedups,
    arms: Sequence[Arm],
    bench: Bench,
    order: Iterator[list[str]],
    is_late: Callable[[], bool],
    advance: Callable[[int], None],
) -> None:
    """Run turns until the launch has enough quiet ones."""
    num_turns, num_quiet = 0, Counter[str]()
    # A cell alone is started once, and its seconds have an interval, too.
    fewest = FEWEST_QUIET_TURNS if len(arms) > 1 else FEWEST_TURNS
    others = arms[1:] or arms
    while num_turns < _MOST_TURNS:
        bench.run_turn(arms, order, speedups.timed_turns)
        advance(len(arms))
        num_turns += 1
        for other in others:
            pair = (speedups.timed_turns.blocks[arm.name][-1] for arm in (arms[0], other))
            num_quiet[other.name] += all(is_quiet(block, speedups.most_share) for block in pair)
        least = min(num_quiet.values())
        if least >= _TURNS or (is_late() and (least >= fewest or num_turns >= _MOST_TURNS_LATE * fewest)):
            return


def _explain_stop(speedups: Speedups, half_width: float, seconds: float, max_seconds: float, is_spent: bool) -> str:
    """Return why to stop, after what; empty to go on."""
    others = speedups.arms[1:]
    turns = wording.format_plural(len(speedups.timed_turns.turns), "turn")
    spent = f"{turns} in {speedups.num_launches} launches of every cell and {seconds:.0f} s"
    if not others:
        return f"{spent}, of the only cell: there is nothing to compare it with"
    limit = f"the {max_seconds:g} s of max_seconds were spent"
    missing = [arm for arm in others if arm not in speedups.intervals]
    loud = (
        f"; for {wording.join_names(missing)} there is no interval: others used more than "
        f"{wording.format_small_percent(speedups.most_share)} of the CPUs so often that fewer than {FEWEST_LAUNCHES} "
        f"launches have {FEWEST_QUIET_TURNS} turns that are quiet for it and the first cell"
    ) * bool(missing)
    if not speedups.intervals:
        return f"{spent}: {limit}{loud}" * is_spent
    widest, arm = max((interval.relative_half_width, arm) for arm, interval in speedups.intervals.items())
    asked = f"±{wording.format_small_percent(half_width)}"
    reached = f"the widest interval is ±{wording.format_small_percent(widest)}"
    _log.info("after %s: %s%s", spent, reached, loud)
    if widest <= half_width:
        return f"{spent}: {reached}, {asked} was asked for" if not missing else f"{spent}: {limit}{loud}" * is_spent
    needed = count_needed_launches(len(speedups.select_quiet(arm).list_by_launch(arm)), widest, half_width)
    return f"{spent}: {limit}, and {reached}; about {needed} launches are needed for {asked}{loud}" * is_spent
