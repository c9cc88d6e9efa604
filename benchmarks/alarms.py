"""How often equal things are called different: A/A comparisons of emulated devices, and of real trainings.

Each compares a cell with itself in rounds of interleaved blocks of one start of its ranks, until the interval is small;
an alarm is an interval that does not hold 1. The real trainings are the cells of params.yaml, on what `dvc repro slice`
made. Writes benchmarks/results/<date>_<machine>_alarms.{json,md}.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from scipy import stats

from benchmarks.causes import waiting_bench
from benchmarks.emulator.device import EmulatedDevice, write_device
from benchmarks.real_session import open_bench, plan_real_session
from benchmarks.results_file import RESULTS, write_results
from benchmarks.rounds import MIN_ROUNDS, Stopping, compute_ratio, list_by_round, run_round
from tasks.measuring.arms import Cell, make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.interleaving import generate_turns
from tasks.measuring.turns import TimedTurns
from tasks.records.estimate import Estimate

_JITTERS = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Spread of every layer, in turn."""
_HALF_WIDTH = 0.03
_MAX_SECONDS = 6.0
_TARGET = 0.05


@dataclass(frozen=True, kw_only=True)
class Run:
    """One A/A comparison."""

    num_ranks: int
    """Ranks of the cell that was compared with itself."""
    jitter: float | None
    """Spread of its layers; None for a real training."""
    ratio: Estimate
    """Seconds of the one / seconds of the other."""
    num_rounds: int
    """Rounds until it stopped."""

    @property
    def is_alarm(self) -> bool:
        """Whether the interval says that the two differ."""
        return not self.ratio.contains(1.0)


def compare_with_itself(bench: Bench, cell: Cell, *, jitter: float | None, seed: int) -> Run:
    """Return what the comparison of a cell with itself came to."""
    arm = make_trained_arm(cell)
    again = replace(arm, name=f"{arm.name} again")
    timed_turns, order = TimedTurns(), generate_turns([arm.name, again.name], seed=seed)
    stopping = Stopping(target_half_width=_HALF_WIDTH, max_seconds=_MAX_SECONDS)
    started, num_rounds, goes_on = time.perf_counter(), 0, True

    def look(confidence: float) -> dict[str, Estimate]:
        one, other = list_by_round(timed_turns, arm.name), list_by_round(timed_turns, again.name)
        return {arm.name: compute_ratio(one, other, confidence=confidence)}

    while goes_on:
        run_round(bench, [arm, again], order, timed_turns)
        num_rounds += 1
        goes_on = stopping.goes_on(num_rounds, seconds=time.perf_counter() - started, look=look)
    ratio = stopping.intervals[arm.name]
    return Run(num_ranks=cell.world_size, jitter=jitter, ratio=ratio, num_rounds=num_rounds)


def find_rate(num_alarms: int, num_runs: int) -> Estimate:
    """Return the share of alarms with its exact 95 % interval (Clopper and Pearson 1934)."""
    found = stats.binomtest(num_alarms, num_runs).proportion_ci(confidence_level=0.95, method="exact")
    return Estimate(num_alarms / num_runs, float(found.low), float(found.high))


def compare_emulated(num_runs: int) -> list[Run]:
    """Return so many comparisons of emulated devices, one and two ranks in turn, with every spread in turn."""
    runs = []
    with tempfile.TemporaryDirectory() as scratch, waiting_bench(Path(scratch)) as bench:
        cells = {jitter: _cells(Path(scratch), jitter) for jitter in _JITTERS}
        bench.build(make_trained_arm(cell) for pair in cells.values() for cell in pair)
        bench.steps_per_block = 2
        for seed in track(range(num_runs), description="emulated devices", console=Console(stderr=True)):
            jitter = _JITTERS[seed // 2 % len(_JITTERS)]
            runs.append(compare_with_itself(bench, cells[jitter][seed % 2], jitter=jitter, seed=seed))
    return runs


def compare_real(num_runs: int) -> list[Run]:
    """Return so many comparisons of the cells of params.yaml, each with itself, in turn."""
    with plan_real_session() as session, open_bench(session) as bench:
        cells = session.comparison.cells
        seeds = track(range(num_runs), description="real trainings", console=Console(stderr=True))
        return [compare_with_itself(bench, cells[seed % len(cells)], jitter=None, seed=seed) for seed in seeds]


def _main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.alarms", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="comparisons of emulated devices")
    parser.add_argument("--real", type=int, default=20, help="comparisons of the cells of params.yaml")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    runs = compare_emulated(arguments.runs) + (compare_real(arguments.real) if arguments.real else [])
    num_alarms = sum(run.is_alarm for run in runs)
    rate = find_rate(num_alarms, len(runs))
    kinds = list(dict.fromkeys((run.num_ranks, run.jitter) for run in runs))
    path = write_results(
        "alarms",
        title="Equal things compared",
        method=(
            "Emulated devices of 4 layers (1 ms forward, 2 ms backward), 4 micro-batches per step, one and two ranks "
            "in turn, and the cells of params.yaml, real trainings; each against itself in rounds of two blocks, of 2 "
            f"steps each for emulated devices and as `make compare` chooses them for real ones, until "
            f"+-{_HALF_WIDTH:.0%} or {_MAX_SECONDS:.0f} s, {MIN_ROUNDS} rounds at least. An alarm is an interval "
            "without 1."
        ),
        headings=["ranks", "spread of layers", "comparisons", "alarms", "widest half-width"],
        rows=[_row(runs, num_ranks, jitter) for num_ranks, jitter in kinds],
        summary=(
            f"{num_alarms} alarms in {len(runs)} comparisons: {rate.value:.1%}, 95 % interval {rate.low:.1%} to "
            f"{rate.high:.1%}; target {_TARGET:.0%}."
        ),
        found=[{"num_ranks": run.num_ranks, "jitter": run.jitter, "ratio": asdict(run.ratio)} for run in runs],
        load_before=load_before,
        folder=arguments.results,
    )
    print(path.read_text(encoding="utf-8"))
    return 0 if num_alarms <= _TARGET * len(runs) else 1


def _cells(folder: Path, jitter: float) -> list[Cell]:
    device = EmulatedDevice(
        num_layers=4, forward_ms=1.0, backward_ms=2.0, gradient_mib_per_layer=8.0,
        link_latency_ms=0.5, link_gib_per_second=8.0, jitter=jitter,
    )  # fmt: skip
    place = {"model_dir": str(write_device(folder / f"jitter {jitter}", device))}
    return [
        Cell(name="1dev", strategy="single", world_size=1, global_batch_size=4, overrides=place),
        Cell(name="2dev", strategy="ddp", world_size=2, global_batch_size=4, overrides=place),
    ]


def _row(runs: list[Run], num_ranks: int, jitter: float | None) -> list[str]:
    mine = [run for run in runs if (run.num_ranks, run.jitter) == (num_ranks, jitter)]
    widest = max((run.ratio.relative_half_width for run in mine), default=0.0)
    alarms = sum(run.is_alarm for run in mine)
    spread = "real training" if jitter is None else f"{jitter:.0%}"
    return [str(num_ranks), spread, str(len(mine)), str(alarms), f"{widest:.1%}"]


if __name__ == "__main__":
    sys.exit(_main())
