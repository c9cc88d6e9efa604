"""What each lever brings: the same training with it and without, in blocks that take turns (docs/performance.md).

Prints the ratios of seconds per step, without / with, and writes benchmarks/results/<date>_<machine>_levers.{json,md}.
Texts are those of the built-in corpus.
"""

import argparse
import itertools
import json
import os
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results_file import RESULTS, write_results
from benchmarks.rounds import average_pairs, compute_ratio
from benchmarks.throughput.rows import write_tiny_training
from tasks.data.builtin.corpus import read_corpus
from tasks.measuring.arms import Arm
from tasks.measuring.bench import Bench
from tasks.measuring.turns import TimedTurns, generate_turns
from tasks.measuring.workers import open_workers
from tasks.params import Params
from tasks.ranks.cell_ranks import make_ranks_config
from training.config import SegmentConfig

_NUM_ROWS, _SEQ_LEN = 768, 512


@dataclass(frozen=True, kw_only=True)
class Lever:
    """One change against the step as it is."""

    name: str
    """In words."""
    overrides: dict[str, Any]
    """Fields of TrainingConfig with it."""
    without: dict[str, Any] = field(default_factory=dict)
    """Fields of TrainingConfig without it, where they are not those of the comparison."""
    ranks: int = 1
    """How many processes."""


LEVERS = [
    Lever(name="packing", overrides={"packing": True}),
    Lever(name="micro-batches of 8 instead of 4, packed", overrides={"packing": True, "micro_batch_size": 8},
          without={"packing": True}),
    Lever(name="compiled layers", overrides={"compile": True}),
    Lever(name="bf16 instead of fp32", overrides={"precision": "bf16"}),
    Lever(name="loss in chunks of 2,048 rows instead of 384", overrides={"loss_chunk_rows": 2048}),
    Lever(name="static_graph", ranks=2, overrides={"options": {"static_graph": True}}),
    Lever(name="bucket_view", ranks=2, overrides={}, without={"options": {"bucket_view": False}}),
    Lever(name="gradients in bf16", ranks=2, overrides={"options": {"gradient_hook": "bf16"}}),
]  # fmt: skip


def comparison():
    """Return what both sides of every lever have in common."""
    return Params.model_validate(
        {
            "name": "levers",
            "description": "Each lever against the step without it.",
            "model": {"source": "builtin:tiny-qwen2", "name": "tiny_qwen2"},
            "dataset": {"source": "builtin:docstrings"},
            "ranges": [f"0-{_NUM_ROWS}"],
            "heldout": f"{_NUM_ROWS}-{_NUM_ROWS + 1}",
            "workload": "causal_lm",
            "train": {
                "epochs": 1, "global_batch_size": 16, "micro_batch_size": 4, "learning_rate": 1e-3, "seq_len": _SEQ_LEN,
            },
            "cells": {"1": {"strategy": "single", "world_size": 1}, "2": {"strategy": "ddp", "world_size": 2}},
        }
    )  # fmt: skip


def measure(levers, folder, *, num_rounds, num_steps):
    """Run both sides of all levers, which have as many ranks, in turns in one process group.

    Return, for each, the ratio of seconds per step with its interval, and what explains it.
    """
    cell, name = str(levers[0].ranks), f"0-{_NUM_ROWS}"
    segment = SegmentConfig(range=name, epoch=1, fingerprint="benchmark", slice_dir=(folder / name).resolve())
    config = make_ranks_config(
        cell, comparison(), device="cpu", base_model=folder / "base_model", work=folder / cell, segments=[segment]
    )
    sides = {json.dumps(side): side for lever in levers for side in (lever.without, lever.overrides)}
    arms = [Arm(name=key, cell=cell, variant={"overrides": side}) for key, side in sides.items()]
    order, timed = generate_turns([*sides], seed=1), TimedTurns()
    with open_workers({cell: config}, launchers={cell: "torchrun"}, stop=threading.Event()) as workers:
        bench = Bench(workers, seed=1)
        bench.build(arms)
        bench.steps_per_block = num_steps
        # The order of every other turn is that of the one before from its end.
        for _ in range(2 * num_rounds):
            bench.run_turn(arms, order, timed)
        warm_up = {arm.name: max(facts["warm_up_seconds"] for facts in bench.facts(arm)) for arm in arms}
    content = {
        key: {
            "seconds": [block.seconds for block in blocks],
            "positions": sum(sum(block.positions_by_rank) for block in blocks)
            / sum(block.num_tokens for block in blocks),
            "warm_up_seconds": warm_up[key],
        }
        for key, blocks in timed.blocks.items()
    }
    return [compute_gain(*(content[json.dumps(side)] for side in (lever.without, lever.overrides))) for lever in levers]


def compute_gain(without, having):
    """Return seconds per step without / with and its interval, and after how many steps a longer warm-up has paid."""
    before, after = (average_pairs(side["seconds"]) for side in (without, having))
    gain = compute_ratio(before, after)
    once, saved = having["warm_up_seconds"] - without["warm_up_seconds"], float(np.median(before) - np.median(after))
    return {
        "gain": [gain.value, gain.low, gain.high],
        "step_seconds": [float(np.median(before)), float(np.median(after))],
        "positions_per_token": [without["positions"], having["positions"]],
        "more_warm_up_seconds": once,
        "break_even_steps": once / saved if saved > 0 else None,
        "seconds": {"without": before, "with": after},
    }


def _row(lever, results):
    notes = []
    if results["positions_per_token"][0] != results["positions_per_token"][1]:
        notes.append("positions per token {:.2f} -> {:.2f}".format(*results["positions_per_token"]))
    if lever.overrides.get("compile"):
        pays = results["break_even_steps"]
        back = f"won back after {pays:,.0f} steps" if pays else "never won back"
        notes.append(f"compiling {results['more_warm_up_seconds']:.0f} s, {back}")
    return [
        lever.name, str(lever.ranks), "{:.3f} ({:.3f} to {:.3f})".format(*results["gain"]),
        " -> ".join(f"{1e3 * seconds:.0f}" for seconds in results["step_seconds"]), "; ".join(notes),
    ]  # fmt: skip


def _main():
    parser = argparse.ArgumentParser(prog="benchmarks.levers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="rounds of two blocks of each side")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps of a block")
    parser.add_argument("--only", default="", help="levers whose name contains this")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    levers = [lever for lever in LEVERS if arguments.only in lever.name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        texts = list(itertools.islice(read_corpus(), _NUM_ROWS))
        rows = write_tiny_training(folder / "base_model", folder / f"0-{_NUM_ROWS}", texts)
        groups = [list(group) for _, group in itertools.groupby(levers, lambda lever: lever.ranks)]
        results = [
            item
            for group in groups
            for item in measure(group, folder, num_rounds=arguments.rounds, num_steps=arguments.steps)
        ]
    path = write_results(
        "levers",
        title="Levers, each with and without",
        method=(
            f"Qwen2 architecture, 4 layers of 128, vocabulary 2,048; {_NUM_ROWS} rows of the built-in corpus, "
            f"{np.mean([min(len(row), _SEQ_LEN) for row in rows]):.0f} tokens on average; 16 rows per step, "
            "micro-batches of 4, fp32, one thread per rank unless said otherwise. Gain: seconds per step without / "
            f"with, above 1 is faster, with its 95 % interval; {arguments.rounds} rounds, in each two blocks of "
            f"{arguments.steps} steps of each side in mirrored order, those of as many ranks in one process group."
        ),
        headings=["lever", "ranks", "gain", "ms per step", "notes"],
        rows=[_row(*pair) for pair in zip(levers, results, strict=True)],
        summary="Not claimed: anything about GPUs, where 16 bit, compiling and variable-length attention weigh more.",
        results={
            "levers": [
                {"name": lever.name, "ranks": lever.ranks, **of} for lever, of in zip(levers, results, strict=True)
            ]
        },
        load_before=load_before,
        folder=arguments.results,
    )
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    _main()
