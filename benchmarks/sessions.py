"""Do sessions of one comparison scatter no more than their intervals say, beside a neighbour as without one?

Measures the speedups of params.yaml again and again, as `make compare` does, in turn on the machine as it is and beside
a process that keeps one core busy half the time. Needs what `dvc repro slice` makes. Writes
benchmarks/results/<date>_<machine>_sessions.{json,md}.
"""

import argparse
import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from scipy import stats

from benchmarks.results_file import RESULTS, write_results
from tasks.machine.facts import collect_machine_facts
from tasks.measure import select_timed_ranges
from tasks.measuring.arms import make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.planning import plan_session
from tasks.measuring.speedups import measure_speedups
from tasks.measuring.turns import choose_seconds
from tasks.measuring.workers import open_workers
from tasks.params import load_params
from tasks.ranks.cell_ranks import find_nodes
from tasks.records.estimate import Estimate

_BUSY_SECONDS = 10.0
"""The neighbour computes so long, then rests as long."""
_NEIGHBOUR = """
import time
while True:
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        pass
    time.sleep({seconds})
"""
_SLICES, _BASE_MODEL = Path("data/slices"), Path("data/base_model")
_QUIET, _BESIDE = "as it is", "beside a neighbour"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionSpeedup:
    """What one session found of one cell."""

    kind: str
    """With which company."""
    number: int
    """Which session, from 1."""
    cell: str
    """Of which cell."""
    interval: Estimate | None
    """Speedup; None without turns enough."""
    all_turns: float
    """Ratio of the means of all turns, the loud ones too."""
    num_turns: int
    """Turns."""
    num_quiet: int
    """Of those, quiet ones."""
    seconds: float
    """Of measuring."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scatter:
    """How sessions of one kind lie."""

    num_sessions: int
    """Sessions."""
    num_told: int
    """Of those with a speedup."""
    mean: float
    """Geometric mean of their speedups."""
    scatter: float
    """Standard deviation of their logarithms."""
    half_width: float
    """Root mean square of their relative half-widths."""
    num_covering: int
    """Sessions whose interval contains the mean of the others of every kind."""


def find_scatter(kind, speedups):
    """Return how the sessions of a kind lie; NaN where fewer than two have a speedup."""
    intervals = [(item.kind, item.interval) for item in speedups if item.interval is not None]
    mine = [interval for of, interval in intervals if of == kind]
    logs = np.log([interval.value for interval in mine])
    covering = 0
    for interval in mine if len(intervals) > 1 else ():
        others = np.log([other.value for _, other in intervals if other is not interval])
        covering += interval.contains(float(np.exp(others.mean())))
    return Scatter(
        num_sessions=sum(result.kind == kind for result in speedups),
        num_told=len(mine),
        mean=float(np.exp(logs.mean())) if len(mine) else float("nan"),
        scatter=float(logs.std(ddof=1)) if len(mine) > 1 else float("nan"),
        half_width=float(np.sqrt(np.mean([item.relative_half_width**2 for item in mine]))) if mine else float("nan"),
        num_covering=covering,
    )


@contextlib.contextmanager
def plan_real_session():
    """Yield a session of the comparison, on the model and the slices that `dvc repro slice` left here.

    The advice is left out; files of its ranks go to a folder that ends with it.
    """
    params = load_params()
    params = params.model_copy(update={"measure": params.measure.model_copy(update={"advice": False})})
    ranges = select_timed_ranges(
        _SLICES, [str(part) for part in params.ranges], seq_len=params.train.seq_len,
        least_rows=params.train.global_batch_size,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        yield plan_session(
            params, machine=collect_machine_facts(), base_model=_BASE_MODEL, rows=[_SLICES / name for name in ranges],
            work=Path(scratch) / "ranks",
        )  # fmt: skip


@contextlib.contextmanager
def open_bench(session):
    """Yield the waiting ranks of all cells, their models built and the length of a block chosen."""
    cells, comparison = session.params.cells, session.comparison
    launchers = {name: spread.launcher for name, spread in cells.items()}
    nodes = {name: find_nodes(name, session.params) for name in cells}
    with open_workers(session.configs, launchers=launchers, nodes=nodes, stop=threading.Event()) as workers:
        bench = Bench(workers, seed=session.params.train.seed)
        bench.build(comparison.trained)
        bench.calibrate(make_trained_arm(comparison.baseline), block_seconds=comparison.block_seconds)
        yield bench


@contextlib.contextmanager
def run_neighbour():
    """Keep one core busy half the time, meanwhile."""
    neighbour = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR.format(seconds=_BUSY_SECONDS)])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def measure_session(kind, number):
    """Return the speedups of the cells of params.yaml, measured once."""
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(plan_real_session())
        comparison = session.comparison
        bench = stack.enter_context(open_bench(session))
        if kind == _BESIDE:
            stack.enter_context(run_neighbour())
        started, of = time.perf_counter(), choose_seconds(is_weak=comparison.is_weak)
        speedups = measure_speedups(
            comparison.trained, bench, half_width=comparison.half_width, max_seconds=comparison.max_seconds,
            burn_in_seconds=comparison.burn_in_seconds, most_share=comparison.most_share, seconds_of=of,
            seed=comparison.seed, advance=lambda num_blocks: None,
        )  # fmt: skip
        seconds = time.perf_counter() - started
    first, *others = (arm.name for arm in comparison.trained)
    mean = {name: float(np.mean(speedups.timed_turns.list_by_turn(name, of))) for name in (first, *others)}
    return [
        SessionSpeedup(
            kind=kind, number=number, cell=name, interval=speedups.intervals.get(name),
            all_turns=mean[first] / mean[name], num_turns=len(speedups.timed_turns.turns),
            num_quiet=len(speedups.select_quiet(name).turns), seconds=seconds,
        )
        for name in others
    ]  # fmt: skip


def _main():
    parser = argparse.ArgumentParser(prog="benchmarks.sessions", description=__doc__)
    parser.add_argument("--sessions", type=int, default=20, help="half of them beside a neighbour")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    speedups = []
    for number in track(range(arguments.sessions), description="sessions", console=Console(stderr=True)):
        speedups += measure_session((_QUIET, _BESIDE)[number % 2], number + 1)
        print(_row(speedups[-1]), file=sys.stderr, flush=True)
    cell = speedups[-1].cell
    scatters = {
        kind: find_scatter(kind, [result for result in speedups if result.cell == cell]) for kind in (_QUIET, _BESIDE)
    }
    path = write_results(
        "sessions",
        title="Sessions of one comparison",
        method=(
            "The speedups of params.yaml, measured as by `make compare` with ranks started anew for every session, in "
            "turn on the machine as it is and beside a process that keeps one core busy for "
            f"{_BUSY_SECONDS:g} s and rests as long. The last column of the table is the ratio of the means of all "
            "turns, the loud ones too, which is not published."
        ),
        headings=["session", "cell", "company", "speedup (95 %)", "quiet turns", "seconds", "of all turns"],
        rows=[_row(result) for result in speedups],
        summary="\n\n".join(_explain(kind, scatter) for kind, scatter in scatters.items()),
        results={
            "sessions": [dataclasses.asdict(result) for result in speedups],
            "scatter": {kind: dataclasses.asdict(scatter) for kind, scatter in scatters.items()},
        },
        load_before=load_before,
        folder=arguments.results,
    )
    print(path.read_text(encoding="utf-8"))
    return 0 if all(_is_honest(scatter) for scatter in scatters.values()) else 1


def _is_honest(scatter):
    """Return whether no fewer intervals hold the mean of the others than 95 % intervals would by chance."""
    if scatter.num_told < 2:
        return True
    return stats.binomtest(scatter.num_covering, scatter.num_told, 0.95, alternative="less").pvalue > 0.05


def _explain(kind, scatter):
    return (
        f"On the machine {kind}: {scatter.num_told} of {scatter.num_sessions} sessions have a speedup; their mean is "
        f"{scatter.mean:.3f}, they scatter by {scatter.scatter:.1%} (standard deviation) where their intervals are "
        f"±{scatter.half_width:.1%} wide, and {scatter.num_covering} of {scatter.num_told} intervals contain the mean "
        "of all other sessions."
    )


def _row(item):
    interval = item.interval
    speedup = "none" if interval is None else f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
    return [
        str(item.number), item.cell, item.kind, speedup, f"{item.num_quiet} of {item.num_turns}", f"{item.seconds:.0f}",
        f"{item.all_turns:.3f}",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(_main())
