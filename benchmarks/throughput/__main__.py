"""`make bench`: our training step beside its peers on this machine's CPU.

Prints the tables and writes benchmarks/results/<date>_<machine>_throughput.{json,md}.
"""

import argparse
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.results_file import RESULTS, write_results
from benchmarks.throughput.contest import OURS, hold_contest, judge_contest, list_contest_rows
from benchmarks.throughput.groups import Setup
from benchmarks.throughput.rows import DATA_VARIABLE, SIZES, data_folder
from benchmarks.throughput.trying import list_settings, select_best, try_settings

_PEERS = {"causal_lm": ("published", "trainer", "accelerated")}
_OF_OTHERS = ("trainer", "accelerated")
"""The loop as published is one of a language model."""
_HEADINGS = [
    "where", "who", "setting", "real tokens/s or images/s", "ours / theirs (95 %)", "by CPU seconds", "peak MiB",
    "loss differs by",
]  # fmt: skip
_TARGET_HEADINGS = ["what", "target", "found", ""]
_METHOD = (
    "Random weights; fp32, 1 thread per process, gloo. Ids above a language model's vocabulary are folded into it by "
    "their remainder, so that lengths are the real ones. Contests are of two at a time, in processes of their own, "
    "which wait idle between their blocks. A round is a block of each in random order and then one of each in the "
    "reverse order; the learning rate is 0, so that weights stay what they are. Settings of everybody, ours among "
    "them, were tried first in turns on the same three blocks (the JSON file has all), on one process by CPU seconds, "
    "on several by seconds of the slowest. The best by the median is taken; of those within 1 % of it, the one with "
    "the smallest micro-batches. Ratios: of means over rounds, paired, Student's t. By CPU seconds: the same of what "
    "processes computed, without waiting, which load by others hardly changes. Lengths are grouped within the rows of "
    "a block. Ours includes ledger, window and a log point per block; checkpoints, evaluation and tracking are outside "
    "the clock for everybody."
)
_NOT_CLAIMED = (
    "Not claimed: anything about GPUs, other models, other sequence lengths or longer groups of lengths than a block; "
    "peak memory is resident memory of all processes, their imports included."
)


def run_contests(sizes, work, *, data, seconds, say):
    """Return the contest with every peer in every setup, and the models and settings that were tried."""
    results, more = [], dict[str, Any](models={}, tried={})
    for size in sizes:
        folder = work / size.name
        more["models"][size.name] = size.write(folder, data=data)
        for world_size in size.world_sizes:
            setup = _make_setup(size, folder, world_size)
            tried = more["tried"][setup.name] = {}
            for peer in (OURS, *_PEERS.get(size.workload, _OF_OTHERS)):
                offered = list_settings(setup, peer, folder / "trying")
                tried[peer] = try_settings(setup, peer, folder / "trying", settings=offered, say=say)
                if peer == OURS:
                    continue
                settings = {name: select_best(tried[name]) for name in (OURS, peer)}
                place = folder / f"{setup.name}, {peer}"
                results.append(hold_contest(setup, peer, place, settings=settings, max_seconds=seconds))
                say(f"{setup.name}, {peer}: {results[-1].stopped_because}")
    return results, more


def _make_setup(size, folder, world_size):
    return Setup(
        name=f"{size.name}, {world_size} process{'es' * (world_size > 1)}", model_dir=folder / "model",
        slice_dir=folder / "rows", num_rows=len(np.load(folder / "rows" / "row_ids.npy")), world_size=world_size,
        global_batch_size=size.global_batch_size, seq_len=size.seq_len, steps_per_block=size.steps_per_block,
        workload=size.workload,
    )  # fmt: skip


def _main():
    parser = argparse.ArgumentParser(prog="benchmarks.throughput", description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder with abstracts and tokenizer (else ${DATA_VARIABLE})")
    parser.add_argument("--seconds", type=float, default=100.0, help="time budget of a contest")
    names = [size.name.split()[0] for size in SIZES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these models alone")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console, load_before = Console(), os.getloadavg()[0]
    sizes = [size for size in SIZES if size.name.split()[0] in arguments.only]
    try:
        data = data_folder(arguments.data)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as scratch:
        contests, more = run_contests(
            sizes, Path(scratch), data=data, seconds=arguments.seconds,
            say=lambda text: console.print(text, markup=False, highlight=False),
        )  # fmt: skip
    judged = [target for result in contests for target in judge_contest(result)]
    rows, targets = list_contest_rows(contests), [item.row() for item in judged]
    for title, headings, lines in (("Throughput", _HEADINGS, rows), ("Targets", _TARGET_HEADINGS, targets)):
        table = Table(*headings, title=title)
        for line in lines:
            table.add_row(*line)
        console.print(table)
    loads = ", ".join(f"{result.load:.1f} ({result.num_rounds} rounds)" for result in contests)
    models = "; ".join(f"{name}: {what}" for name, what in more["models"].items())
    method = f"{models}. {_METHOD} Load average of five minutes at the end of each contest, its own included: {loads}."
    path = write_results(
        "throughput" + ("_" + "-".join(arguments.only)) * (len(sizes) < len(SIZES)),
        title="Throughput beside other ways to train",
        method=method,
        headings=_HEADINGS,
        rows=rows,
        summary="\n".join(
            [f"| {' | '.join(target)} |" for target in (_TARGET_HEADINGS, ["---"] * 4, *targets)] + ["", _NOT_CLAIMED]
        ),
        results={
            **more,
            "targets": [dataclasses.asdict(target) for target in judged],
            "contests": [result.as_json() for result in contests],
        },
        load_before=load_before,
        folder=arguments.results,
    )
    console.print(f"written: {path}")


if __name__ == "__main__":
    _main()
