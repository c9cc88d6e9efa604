"""`python -m benchmarks.ranks_growth`: what the bookkeeping of a training costs per rank, from 2 ranks up.

What runs in one process (the watchdog, the cap on logs, the facts of a step, its line, the record of a segment) is
replayed for up to 1,024 ranks with the code of the product. What passes between ranks is done by as many idle ranks as
`--ranks` says, processes of this machine that have a process group and no model. Processor seconds of rank 0 count, and
of the process that looks; seconds of the clock for the exchanges are given beside them, and belong to this machine's
cores.
Writes benchmarks/results/<date>_<machine>_ranks-growth.{json,md}.
"""

import argparse
import dataclasses
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console

from benchmarks.growth.fit import exponent
from benchmarks.results_file import write_results
from tasks.process.log_cap import LogCap
from tasks.ranks.watchdog import Watchdog
from training.data.plan import StepPlan
from training.process.distributed import Ranks
from training.process.heartbeat import Heartbeat
from training.record.segment_facts import RankDevice
from training.record.window import Window

_REPLAYED = (2, 8, 64, 1024)
_JOINED = (2, 8, 32, 64)
_REPEATS = 20
_STEPS_IN_WINDOW = 16
_DEVICE = RankDevice(gpu_uuid="GPU-01234567-89ab-cdef-0123-456789abcdef", cpus=list(range(8)), cpu_quota=None)
_NUM_FIGURES = 11
"""Figures that each rank tells of a step (training/record/window.py)."""
_HEADINGS = ["what", "per", "ranks", "figure", "exponent", "counted as"]

Points = dict[int, float]


def _time(call: Callable[[], Any]) -> float:
    """Return the least processor seconds of a call."""
    found = []
    for _ in range(_REPEATS):
        started = time.process_time()
        call()
        found.append(time.process_time() - started)
    return min(found)


def time_look(num_ranks: int) -> float:
    """Return the seconds of one look at all ranks, each of them where another is."""
    with Watchdog(world_size=num_ranks, step_seconds=60.0) as watchdog:
        for rank in range(num_ranks):
            Heartbeat(watchdog.file, rank=rank).begin(rank + 1)
        watchdog.look()
        return _time(watchdog.look)


def time_log_look(num_ranks: int) -> float:
    """Return the seconds of one look at the logs of all ranks, two each, none of them too long."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(num_ranks):
            (Path(folder) / str(rank)).mkdir()
            for name in ("stdout.log", "stderr.log"):
                (Path(folder) / str(rank) / name).write_text("a line\n")
        cap = LogCap(Path(folder))
        cap.close()
        return _time(cap._look)


def time_step_facts(num_ranks: int) -> tuple[float, int]:
    """Return the seconds in which rank 0 makes the facts of one step, and the bytes of its line in steps.jsonl."""
    window = Window.__new__(Window)
    planned = StepPlan(micro_batches=(), num_tokens=num_ranks, num_targets=num_ranks)
    figures = np.full((num_ranks, _NUM_FIGURES), 0.123456789)
    figures[:, 5:7] = 1.0
    window._steps = [(7, planned, 2e-3)]
    facts = window._make_step_facts(7, planned, 2e-3, figures, False)
    line = json.dumps(dataclasses.asdict(facts))
    return _time(lambda: window._make_step_facts(7, planned, 2e-3, figures, False)), len(line)


def count_segment_bytes(num_ranks: int) -> int:
    """Return the bytes that segment.json has for its ranks: two digests and a device each."""
    told = {"parameter_checksums": ["0" * 64] * num_ranks, "optimizer_checksums": ["0" * 64] * num_ranks}
    return len(json.dumps({**told, "rank_devices": [dataclasses.asdict(_DEVICE)] * num_ranks}, indent=2))


def _join(rank: int, num_ranks: int, store: str, found: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    started = time.perf_counter()
    dist.init_process_group("gloo", store=dist.FileStore(store, num_ranks), rank=rank, world_size=num_ranks)
    group: Any = dist.new_group(backend="gloo")
    joined = time.perf_counter() - started
    ranks = Ranks(
        rank=rank, world_size=num_ranks, device=torch.device("cpu"), backend="gloo", gradient_group=group
    )  # fmt: skip
    window = np.zeros((_STEPS_IN_WINDOW, _NUM_FIGURES))
    rows = np.zeros((_STEPS_IN_WINDOW * 4, 4), dtype=np.int32)
    exchanges: dict[str, Callable[[], Any]] = {
        "log point": lambda: ranks.gather(window),
        "digests": lambda: ranks.gather_text("0" * 64),
        "samples": lambda: ranks.gather_rows(rows),
        "a word of rank 0": lambda: ranks.ask_first_rank(lambda: {"go": True}),
    }
    told = {"joined": {"clock": joined, "cpu": time.process_time()}}
    for name, exchange in exchanges.items():
        exchange()
        clock, cpu = time.perf_counter(), time.process_time()
        for _ in range(_REPEATS):
            exchange()
        clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
        told[name] = {"clock": clock / _REPEATS, "cpu": cpu / _REPEATS}
    if rank == 0:
        found.put(told)
    dist.barrier()
    dist.destroy_process_group()


def time_exchanges(num_ranks: int) -> dict[str, dict[str, float]]:
    """Return for each exchange between so many idle ranks its seconds by the clock and by rank 0's processor."""
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = [
            context.Process(target=_join, args=(rank, num_ranks, store, found), daemon=True)
            for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"of {num_ranks} ranks not all ended well")
        told: dict[str, dict[str, float]] = found.get()
        return told


def measure(joined: tuple[int, ...]) -> dict[str, Points]:
    """Return what was measured: name -> number of ranks -> figure."""
    found: dict[str, Points] = {"look": {}, "logs": {}, "facts": {}, "line": {}, "segment": {}}
    for num_ranks in _REPLAYED:
        found["look"][num_ranks] = time_look(num_ranks)
        found["logs"][num_ranks] = time_log_look(num_ranks)
        found["facts"][num_ranks], found["line"][num_ranks] = time_step_facts(num_ranks)
        found["segment"][num_ranks] = count_segment_bytes(num_ranks)
    for num_ranks in joined:
        Console(stderr=True).print(f"{num_ranks} idle ranks")
        for name, figures in time_exchanges(num_ranks).items():
            for kind, value in figures.items():
                found.setdefault(f"{name}, {kind}", {})[num_ranks] = value
    return found


_WHAT = {
    "look": ("the watchdog looks at all ranks", "look, five a second", "processor time, replayed"),
    "logs": ("the cap looks at the logs of all ranks", "look, two a second", "processor time, replayed"),
    "facts": ("rank 0 makes the facts of a step", "step", "processor time, replayed"),
    "line": ("line of steps.jsonl", "step", "bytes"),
    "segment": ("segment.json, of its ranks", "segment", "bytes"),
    "joined, clock": ("ranks find each other, two groups", "launch", "clock"),
    "log point, clock": ("figures of 16 steps gathered", "log point", "clock"),
    "log point, cpu": ("figures of 16 steps gathered", "log point", "processor time of rank 0"),
    "digests, clock": ("digests of the weights gathered", "log point", "clock"),
    "samples, clock": ("64 samples of each rank gathered", "512 steps at most", "clock"),
    "a word of rank 0, clock": ("all hear a word of rank 0", "checkpoint", "clock"),
}


def main() -> None:
    """Measure, write both files, and say where."""
    parser = argparse.ArgumentParser(prog="benchmarks.ranks_growth", description=__doc__)
    parser.add_argument("--ranks", type=int, default=_JOINED[-1], help="most idle ranks to start (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load_before = os.getloadavg()[0]
    found = measure(tuple(num for num in _JOINED if num <= arguments.ranks))
    rows = []
    for name, (what, per, counted) in _WHAT.items():
        sizes = sorted(found[name])
        grows = f"{exponent(sizes, [found[name][size] for size in sizes]):.2f}"
        for size in sizes:
            value = found[name][size]
            figure = f"{value:,.0f} B" if counted == "bytes" else f"{value * 1e3:.3g} ms"
            rows.append([what, per, f"{size:,}", figure, grows, counted])
    path = write_results(
        "ranks-growth",
        title="What a rank more costs",
        method=" ".join((__doc__ or "").split("\n\n")[1].split("\n"))
        + " The exponent is that of the figure against the number of ranks, fitted over all of them.",
        headings=_HEADINGS,
        rows=rows,
        summary="docs/scale.md says what follows from it.",
        found={name: {str(size): value for size, value in points.items()} for name, points in found.items()},
        load_before=load_before,
    )
    Console().print(f"{path}")


if __name__ == "__main__":
    main()
