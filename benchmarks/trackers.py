"""Does a tracker slow a training? MLflow and Prefect, healthy, unreachable, locked and slow, each against no tracker.

One training runs throughout. The process that follows it, as the stage `train` and the flow do, changes what it tells
whom from block to block. Prints a table and writes benchmarks/results/<date>_<machine>_trackers.{json,md}.
"""

import argparse
import contextlib
import dataclasses
import itertools
import logging
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
from rich.console import Console
from rich.progress import track

from benchmarks import bookkeeping
from benchmarks.results_file import RESULTS, write_results
from benchmarks.rounds import FEWEST_ROUNDS, average_blocks, compute_ratio, generate_rounds
from benchmarks.throughput.rows import write_rows
from benchmarks.trackers_states import NONE, STATES, prefect_server, tracked
from tasks.machine.facts import collect_machine_facts
from tasks.params import Params, load_params
from tasks.process.failure import PreemptedError
from tasks.process.logs import switch_off_telemetry
from tasks.ranks.cell_ranks import run_ranks
from tasks.records.estimate import Estimate
from tasks.records.facts import SliceFacts
from tasks.records.slices import SlicesManifest
from tasks.records.sources import BaseModelManifest
from tasks.services import follower as following
from tasks.train import CellTraining, PlannedSegment
from training.config import TrainingConfig

_PROJECT = Path(__file__).resolve().parent.parent
_TARGET = 0.01
_BLOCK_SECONDS = 10.0
_LEAD_IN_SECONDS = 0.5
"""Longer than between two looks at what the ranks say: the steps of a block began in it."""
_MOST_SECONDS_BETWEEN_BLOCKS = 5.0
_LEAST_STEP_SECONDS = 0.05


class Training:
    """A training that goes on until it is left, and the seconds of its steps as they come."""

    def __init__(self, run: CellTraining, config: TrainingConfig) -> None:
        self.run = run
        self.follower: following.Followers | None = None
        """Whom the steps are told."""
        self._seconds: list[float] = []
        self._stop, options = threading.Event(), {"launcher": "torchrun", "follow": self._follow}
        self._end = ThreadPoolExecutor(max_workers=1).submit(run_ranks, config, stop=self._stop, **options)

    def __enter__(self) -> "Training":
        try:
            while len(self._seconds) < 5 and not self._end.done():
                time.sleep(0.1)
        except BaseException:
            self._stop.set()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with contextlib.suppress(PreemptedError):
            self._end.result()

    def block(self, seconds: float, server: psutil.Process | None) -> tuple[float, float]:
        """Return seconds per step, and seconds of CPU per second of whoever follows it and of Prefect's server."""
        time.sleep(_LEAD_IN_SECONDS)
        first, cpu, started = len(self._seconds), _cpu_seconds(server), time.perf_counter()
        time.sleep(seconds)
        share = (_cpu_seconds(server) - cpu) / (time.perf_counter() - started)
        if self._end.done():
            raise RuntimeError("the training ended before the last block; if it did not fail, it had too few rows")
        return float(np.mean(self._seconds[first:])), share

    def _follow(self, events: list[dict[str, Any]]) -> None:
        follower = self.follower
        if follower is not None:
            follower.send(events)
        self._seconds += [event["seconds"] for event in events if event["event"] == "step"]


def _cpu_seconds(server: psutil.Process | None) -> float:
    return time.process_time() + (sum(server.cpu_times()[:2]) if server else 0.0)


def prepare(folder: Path, params: Params, *, num_rows: int) -> None:
    """Write the embedded model and its texts, in rows of equal length: every step is the same work."""
    from mlflow import MlflowClient

    bookkeeping.prepare(folder)
    (texts,) = (folder / "slices").glob("*/tokens.npy")
    write_rows(folder / "slices" / f"0-{num_rows}", np.resize(np.load(texts), (num_rows, params.train.seq_len)))
    parts = (*map(str, params.ranges), params.heldout_name)
    SlicesManifest(
        vocab_size=None, eos_token_id=None, workload=params.workload, heldout=params.heldout_name,
        slices={one: SliceFacts(range=one, num_rows=0, num_tokens=0, digest="") for one in parts},
    ).write(folder / "slices")  # fmt: skip
    collect_machine_facts().write(folder)
    MlflowClient(tracking_uri=f"sqlite:///{folder / 'empty.db'}").search_experiments()


def measure(
    folder: Path, params: Params, cell: str, *, states: Sequence[str], num_rows: int, num_rounds: int, seconds: float
) -> list[dict[str, dict[str, float]]]:
    """Return for each round step_seconds and cpu_share: state -> mean of its two blocks."""
    segment = PlannedSegment(range=f"0-{num_rows}", epoch=1, fingerprint="benchmark", folder="", num_steps=0)
    run = CellTraining(
        params=params, cell=cell, device="cpu", base_model=BaseModelManifest.model_construct(digest=""),
        code_digest="", machine_digest="",
        segments=[segment], work=folder / ".work" / "runs" / cell,
    )  # fmt: skip
    config = run.config(base_model=folder / "base_model", slices=folder / "slices")
    found, order = [], itertools.islice(generate_rounds(list(states), seed=1), num_rounds)
    has_server = "Prefect, healthy" in states
    with (
        # A block of 10 s has one flush, as have 10 s of a training, and nothing of it is cut off at the block's end.
        mock.patch.object(following, "FLUSH_SECONDS", 0.6 * seconds),
        mock.patch.dict(os.environ, {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1"}),
        contextlib.chdir(folder),
        prefect_server(folder) if has_server else contextlib.nullcontext() as server,
        # The weights stay about those of the base model.
        Training(run, dataclasses.replace(config, learning_rate=1e-9, schedule="constant")) as training,
    ):
        watched = psutil.Process(server._process.pid) if server else None
        for names in track(order, description=cell, total=num_rounds, console=Console(stderr=True)):
            blocks = []
            for state in names:
                with tracked(training, state, folder, server):
                    blocks.append(training.block(seconds, watched))
            step_seconds, cpu_share = (average_blocks(names, one) for one in zip(*blocks, strict=True))
            found.append({"step_seconds": step_seconds, "cpu_share": cpu_share})
    return found


def judged(ratio: Estimate) -> str:
    """Return what the ratio of seconds per step, with / without, says about the target."""
    if ratio.high <= 1 + _TARGET:
        return "held"
    if ratio.low > 1 + _TARGET:
        return "missed"
    return f"not resolved; the median {'holds' if ratio.value <= 1 + _TARGET else 'misses'} it"


def row_of(ranks: int, state: str, found: Sequence[dict[str, dict[str, float]]]) -> list[str]:
    """Return the line of the table for one state."""
    with_it, without = ([one["step_seconds"][name] for one in found] for name in (state, NONE))
    cpu = np.median([one["cpu_share"][state] - one["cpu_share"][NONE] for one in found])
    ratio = compute_ratio(with_it, without)
    return [
        str(ranks), state, f"{1e3 * np.median(without):.1f} -> {1e3 * np.median(with_it):.1f}",
        f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})", judged(ratio), f"{cpu:.2%}",
    ]  # fmt: skip


def _main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.trackers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="rounds of two blocks of each state; at least 6")
    parser.add_argument("--cells", nargs="+", default=["1proc", "2proc"], help="of presets/embedded.yaml")
    parser.add_argument("--states", nargs="+", choices=STATES[1:], default=STATES[1:], help="of the trackers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds {arguments.rounds} gives no interval; at least {FEWEST_ROUNDS}")
    switch_off_telemetry()
    # Every block that goes wrong on purpose would warn of it.
    logging.disable(logging.WARNING)
    load_before, params = os.getloadavg()[0], load_params(_PROJECT / "presets" / "embedded.yaml")
    states = [NONE, *arguments.states]
    most_seconds = 2 * arguments.rounds * len(states) * (_BLOCK_SECONDS + _MOST_SECONDS_BETWEEN_BLOCKS)
    num_rows = int(most_seconds / _LEAST_STEP_SECONDS) * params.train.global_batch_size
    asked = {"states": states, "num_rows": num_rows, "num_rounds": arguments.rounds, "seconds": _BLOCK_SECONDS}
    with tempfile.TemporaryDirectory() as scratch:
        prepare(Path(scratch), params, num_rows=num_rows)
        found = {cell: measure(Path(scratch), params, cell, **asked) for cell in arguments.cells}
    path = write_results(
        "trackers",
        title="What trackers cost a training",
        method=(
            f"Embedded model and texts in rows of {params.train.seq_len} tokens, {params.train.global_batch_size} of "
            f"them per step, {params.train.threads_per_rank} thread per rank. One training runs throughout; "
            f"{arguments.rounds} rounds, in each two blocks of {_BLOCK_SECONDS:.0f} s of each state in mirrored order. "
            "Ratio: seconds per step, as the training counts them, with the tracker / without any, mean of a block; "
            "means over the rounds, paired, Student's 95 % interval. CPU: seconds per second, beyond those "
            "without a tracker, of the process that tells MLflow and Prefect and of Prefect's server; ranks that "
            "have every core lose about that share at most. A block has one flush to MLflow, or one look for "
            "Prefect, as have 10 s of a training; MLflow waits 1 s for an answer instead of 10."
        ),
        headings=["ranks", "tracker", "ms per step", "ratio", f"at most {_TARGET:.0%} slower", "CPU"],
        rows=[
            row_of(params.cells[cell].world_size, state, found[cell]) for cell in found for state in arguments.states
        ],
        summary=(
            "Not claimed: anything about GPUs, the seconds before the first step and after the last, or what the flow "
            "says in Prefect's log."
        ),
        found=found,
        load_before=load_before,
        folder=arguments.results,
    )
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    _main()
