"""One rank of benchmarks/levers.py: blocks of real optimizer steps, variant by variant of the cell, taking turns."""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.rounds import generate_rounds
from training.config import read_config
from training.probing.variants import Variant, build_variant, load_micro_batches
from training.process.distributed import join_ranks


def run_block(made, ranks, steps):
    """Return the seconds per step of the slowest rank, and positions per token; the first step leads in."""
    batches = load_micro_batches(made, ranks, [steps[0], *steps], "loader")
    positions = tokens = 0
    started = 0.0
    for turn, (parts, step, _) in enumerate(batches):
        if turn == 1:
            ranks.highest(0)
            started = time.perf_counter()
        num_targets = made.plan.step(step).num_targets
        made.strategy.train_step(parts, num_targets=num_targets, learning_rate=0.0)
        positions += sum(part.input_ids.numel() for part in parts)
        tokens += sum(part.num_tokens for part in parts)
    seconds = (time.perf_counter() - started) / len(steps)
    return float(ranks.gather(np.array([seconds])).max()), positions / max(tokens, 1)


def main():
    """Time the arms of work_dir/arms.json; rank 0 writes work_dir/found.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config = read_config(parser.parse_args().config)
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(config.threads_per_rank)
    asked = json.loads((config.work_dir / "arms.json").read_bytes())
    with join_ranks(config) as ranks:
        made = {
            name: build_variant(Variant(overrides=changes), config, ranks) for name, changes in asked["arms"].items()
        }
        results = {
            name: {"seconds": [], "positions": 0.0, "warm_up_seconds": item.warm_up_seconds}
            for name, item in made.items()
        }
        order, random = generate_rounds(list(made), seed=1), np.random.default_rng(1)
        num_steps = min(len(item.source) // item.config.global_batch_size for item in made.values())
        for _ in range(asked["rounds"]):
            names = next(order)
            for half in (names[: len(made)], names[len(made) :]):
                start = int(random.integers(num_steps))
                steps = [(start + turn) % num_steps + 1 for turn in range(asked["steps"])]
                for name in half:
                    seconds, positions = run_block(made[name], ranks, steps)
                    results[name]["seconds"].append(seconds)
                    results[name]["positions"] = positions
        if ranks.is_first:
            (config.work_dir / "found.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
