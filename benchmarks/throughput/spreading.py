"""Two processes against one, held against what this machine's cores could give at most; and what a start costs."""

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rounds import MIN_ROUNDS, Stopping, compute_ratio, list_by_round, run_round
from benchmarks.throughput.groups import Setup
from tasks.measuring.arms import Arm
from tasks.measuring.bench import Bench
from tasks.measuring.interleaving import generate_turns
from tasks.measuring.turns import TimedTurns
from tasks.measuring.workers import open_workers
from tasks.records.estimate import Estimate
from training.config import parse_config
from training.process.files import write_json

MIN_ACCUMULATION = 8
"""Micro-batches per rank and step."""
_START_TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Two processes against one."""

    accumulation: int
    """Micro-batches of a rank in a step."""
    speedup: Estimate
    """Seconds of one process / seconds of two."""
    ceiling: Estimate
    """Seconds of one process / seconds of two that know nothing of each other, each with half of the work."""
    share: Estimate
    """Speedup / ceiling."""
    num_rounds: int
    """Rounds of two blocks of each."""


def spread(
    setup: Setup,
    work: Path,
    *,
    overrides: Mapping[str, Any],
    max_seconds: float,
    half_width: float,
    min_rounds: int = MIN_ROUNDS,
) -> Spread:
    """Return how two processes compare with one; `overrides` of TrainingConfig make 8 micro-batches per rank or more.

    Raises ValueError if they do not.
    """
    micro_batches = -(-setup.global_batch_size // int(overrides["micro_batch_size"]))
    if micro_batches // 2 < MIN_ACCUMULATION:
        raise ValueError(
            f"global_batch_size={setup.global_batch_size}, micro_batch_size={overrides['micro_batch_size']}: "
            f"{micro_batches // 2} micro-batches per rank; needed: {MIN_ACCUMULATION}"
        )
    arms = [
        Arm(name="one", cell="one"),
        Arm(name="two", cell="two"),
        Arm(name="copies", cell="two", variant={"is_independent": True}),
    ]
    told = {**setup.training(work), **overrides}
    spread = {"one": {"world_size": 1, "strategy": "single"}, "two": {"world_size": 2, "strategy": "ddp"}}
    configs = {
        cell: parse_config({**told, "cell": cell, "work_dir": str(work / cell), **one}) for cell, one in spread.items()
    }
    timed_turns, order = TimedTurns(), generate_turns([arm.name for arm in arms], seed=1)
    stopping = Stopping(target_half_width=half_width, max_seconds=max_seconds, min_rounds=min_rounds)

    def ratio(one: str, other: str, confidence: float = 0.95) -> Estimate:
        return compute_ratio(list_by_round(timed_turns, one), list_by_round(timed_turns, other), confidence=confidence)

    with open_workers(configs, launchers=dict.fromkeys(configs, "torchrun"), stop=threading.Event()) as workers:
        bench = Bench(workers, seed=1)
        bench.build(arms)
        bench.steps_per_block = setup.steps_per_block
        started, num_rounds = time.perf_counter(), 0
        while True:
            run_round(bench, arms, order, timed_turns)
            num_rounds += 1
            seconds = time.perf_counter() - started
            if not stopping.goes_on(
                num_rounds, seconds=seconds, look=lambda confidence: {"share": ratio("copies", "two", confidence)}
            ):
                break
    return Spread(
        accumulation=micro_batches // 2,
        speedup=ratio("one", "two"),
        ceiling=ratio("one", "copies"),
        share=stopping.intervals["share"],
        num_rounds=num_rounds,
    )


def start_seconds(setup: Setup, work: Path, *, repeats: int = 5) -> dict[str, list[float]]:
    """Return, turn by turn, seconds of a process that imports torch, and of a training child until its first step.

    The child is the rank itself, without a launcher; its first step begins when the line of that step appears, less the
    seconds that the line gives.
    """
    found: dict[str, list[float]] = {"import torch": [], "first step": []}
    for turn in range(repeats):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        found["import torch"].append(time.perf_counter() - started)
        found["first step"].append(_seconds_to_first_step(setup, work / str(turn)))
    return found


def beyond_import(found: Mapping[str, list[float]]) -> float:
    """Return the median over the turns of what the child takes beyond the import of torch."""
    return statistics.median(
        child - imported for child, imported in zip(found["first step"], found["import torch"], strict=True)
    )


def _seconds_to_first_step(setup: Setup, work: Path) -> float:
    config = {**setup.training(work), "log_every_steps": 1, "world_size": 1, "strategy": "single"}
    write_json(work / "config.json", config)
    stream = work / "steps.jsonl"
    with (work / "log.txt").open("wb") as log:
        started = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", "training", "--config", str(work / "config.json")], stdout=log, stderr=log
        )
        try:
            while time.perf_counter() - started < _START_TIMEOUT and child.poll() is None:
                for line in stream.read_text().splitlines() if stream.exists() else []:
                    if '"event": "step"' in line:
                        return time.perf_counter() - started - float(json.loads(line)["seconds"])
                time.sleep(0.01)
        finally:
            child.kill()
            child.wait()
    raise RuntimeError(f"no first step: {(work / 'log.txt').read_text()[-500:]}")
