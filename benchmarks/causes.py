"""Is the waterfall right? Every cause of lost time, injected into emulated devices alone and in pairs.

Prints what was injected and what the waterfall named, and writes benchmarks/results/<date>_<machine>_causes.{json,md}.
A case is right if the largest parts are those that were injected, each clear of the noise.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.emulator.device import EmulatedDevice, expected_step_seconds, write_device
from benchmarks.emulator.measuring import emulated_params, emulated_ranks
from benchmarks.results_file import RESULTS, write_results
from benchmarks.rounds import run_round
from tasks.measuring.arms import Cell, make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.interleaving import generate_turns
from tasks.measuring.timed_comparison import TimedComparison
from tasks.measuring.turns import TimedTurns
from tasks.measuring.waterfall import compute_waterfall
from tasks.records.lost_time import Waterfall

_LOST_MS = 9.0
"""What each cause takes of a step of 24 ms on two ranks, all but contention exactly."""
CAUSES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "exposed communication": ({}, {"link_latency_ms": _LOST_MS}),
    "DDP overhead": ({}, {"wrapper_ms": _LOST_MS}),
    "contention": ({}, {"contention": 0.35}),
    # Every rank does all of it, so half of it is lost.
    "optimizer": ({"optimizer_ms": 2 * _LOST_MS}, {"optimizer_ms": 2 * _LOST_MS}),
    "fixed": ({"fixed_ms": 2 * _LOST_MS}, {"fixed_ms": 2 * _LOST_MS}),
    # The baseline's device is the first rank's; the other one is slow.
    "straggler": ({}, {"straggler_ms": _LOST_MS, "straggler_rank": 1}),
    # Two ranks share what one has for itself: a bus, a loader.
    "host-to-device copy": ({"copy_ms": 1.0}, {"copy_ms": 1.0 + _LOST_MS / 2}),
    "data wait": ({}, {}),
}
"""Cause -> what it adds to the device of one rank, and to those of two; the loader's depends on all else."""

_PLAIN = EmulatedDevice(num_layers=4, forward_ms=1.0, backward_ms=2.0, gradient_mib_per_layer=2.0)
_NUM_MICRO_BATCHES = 4
_NUM_RANKS = 2
_NUM_ROUNDS = 6
_STEPS_PER_BLOCK = 4
_WORST_UNEXPLAINED = 0.02
_TARGET = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One device with some causes injected."""

    causes: tuple[str, ...]
    """What was injected; nothing: a device that loses nothing."""
    found: Waterfall
    """What was measured."""

    @property
    def named(self) -> tuple[str, ...]:
        """The largest parts that are clear of the noise, as many as were injected."""
        clear = [part for part in self.found.parts if part.seconds.low > 0]
        largest = sorted(clear, key=lambda part: -part.seconds.value)[: len(self.causes)]
        return tuple(sorted(part.name for part in largest))

    @property
    def is_right(self) -> bool:
        """Whether what was named is what was injected."""
        return self.named == tuple(sorted(self.causes))


def all_cases() -> list[tuple[str, ...]]:
    """Return every cause alone and every pair."""
    return [(cause,) for cause in CAUSES] + list(itertools.combinations(CAUSES, 2))


@contextlib.contextmanager
def waiting_bench(folder: Path) -> Iterator[Bench]:
    """Yield one and two waiting ranks, for any device."""
    params = emulated_params([1, _NUM_RANKS], num_micro_batches=_NUM_MICRO_BATCHES)
    with emulated_ranks(params, folder=folder, device=_PLAIN) as workers:
        yield Bench(workers, seed=1)


def measure_case(bench: Bench, causes: Sequence[str], *, folder: Path, num_rounds: int = _NUM_ROUNDS) -> Case:
    """Measure the waterfall of two devices with these causes."""
    name = " and ".join(causes) or "nothing"
    board = folder / f"{name}, board"
    board.mkdir()
    shared = {"shared_folder": str(board)} if "contention" in causes else {}
    places = {
        size: {"model_dir": str(write_device(folder / f"{name}, {size}", _device(causes, size, shared)))}
        for size in (1, _NUM_RANKS)
    }
    params = emulated_params([1, _NUM_RANKS], num_micro_batches=_NUM_MICRO_BATCHES)
    cells = [
        Cell(
            name=cell, strategy=spread.strategy, world_size=spread.world_size,
            global_batch_size=_NUM_MICRO_BATCHES, overrides=places[spread.world_size],
        )
        for cell, spread in params.cells.items()
    ]  # fmt: skip
    comparison = TimedComparison(
        cells=cells, has_copy=True, is_weak=False, is_exact=False, half_width=0.03,
        max_seconds=0.0, waterfall_seconds=0.001, most_share=1.0, block_seconds=0.1, seed=1,
    )  # fmt: skip
    arms = [make_trained_arm(cell) for cell in cells] + comparison.counterfactuals
    bench.build(arms)
    bench.steps_per_block = _STEPS_PER_BLOCK
    order, timed_turns = generate_turns([arm.name for arm in arms], seed=1), TimedTurns()
    for _ in range(num_rounds):
        run_round(bench, arms, order, timed_turns)
    found = compute_waterfall(
        timed_turns, baseline=cells[0], cell=cells[1], has_copy=True, is_weak=False, ddp_timers={},
    )  # fmt: skip
    bench.forget()
    return Case(causes=tuple(causes), found=found)


def _device(causes: Sequence[str], world_size: int, shared: Mapping[str, str]) -> EmulatedDevice:
    """Return the device of each rank where there are so many."""
    added: dict[str, Any] = {}
    for cause in causes:
        for name, value in CAUSES[cause][world_size > 1].items():
            added[name] = added.get(name, 0) + value
    device = dataclasses.replace(_PLAIN, **added, **(shared if world_size > 1 else {}))
    if "data wait" in causes and world_size > 1:
        num_micro_batches = _NUM_MICRO_BATCHES // world_size
        seconds = expected_step_seconds(device, world_size, num_micro_batches)
        device = dataclasses.replace(device, data_ms=(1e3 * seconds + _LOST_MS) / num_micro_batches)
    return device


def _main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.causes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=_NUM_ROUNDS, help="rounds of blocks per case")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch, waiting_bench(Path(scratch)) as bench:
        progress = track(all_cases(), description="cases", console=Console(stderr=True))
        cases = [measure_case(bench, causes, folder=Path(scratch), num_rounds=arguments.rounds) for causes in progress]
    num_right = sum(case.is_right for case in cases)
    num_explained = sum(abs(case.found.unexplained_efficiency) <= _WORST_UNEXPLAINED for case in cases)
    path = write_results(
        "causes",
        title="Causes of lost time, injected into emulated devices",
        method=(
            f"1 against {_NUM_RANKS} emulated devices, {_NUM_MICRO_BATCHES} micro-batches of 12 ms per step; each "
            "cause takes about 9 ms of a step of 24 ms, alone and with every other. Named: the largest parts of the "
            f"waterfall whose interval is above 0, as many as were injected; {arguments.rounds} rounds per case, "
            f"blocks of {_STEPS_PER_BLOCK} steps."
        ),
        headings=["injected", "named", "right", "lost efficiency", "unexplained"],
        rows=[
            [
                " + ".join(case.causes), " + ".join(case.named) or "nothing", "yes" if case.is_right else "**no**",
                f"{case.found.lost_efficiency:.1%}", f"{case.found.unexplained_efficiency:+.1%}",
            ]
            for case in cases
        ],
        summary=(
            f"Named rightly: {num_right} of {len(cases)} ({num_right / len(cases):.0%}; target {_TARGET:.0%}). The "
            f"parts add up to the lost efficiency within 2 points in {num_explained} of {len(cases)}."
        ),
        found=[
            {"causes": case.causes, "named": case.named, "waterfall": case.found.model_dump(mode="json")}
            for case in cases
        ],
        load_before=load_before,
        folder=arguments.results,
    )  # fmt: skip
    print(path.read_text(encoding="utf-8"))
    return 0 if num_right >= _TARGET * len(cases) and num_explained == len(cases) else 1


if __name__ == "__main__":
    sys.exit(_main())
