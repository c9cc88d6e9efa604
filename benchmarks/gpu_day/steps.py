"""`python -m benchmarks.gpu_day.steps --config FILE --out FOLDER`: timed steps of one setting, on one rank or several.

Rank 0 writes found.json: what each block took and did, and the memory.
"""

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.config import read_config
from training.probing.timed_blocks import Block, BlockRunner
from training.probing.variants import Variant
from training.process.distributed import join_ranks
from training.process.files import write_json
from training.process.lifeline import end_with_parent

_BLOCKS, _STEPS_PER_BLOCK = 6, 4


def main() -> None:
    """Run blocks of consecutive steps, all of them as a training does."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_day.steps", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    config = read_config(arguments.config)
    torch.set_num_threads(config.threads_per_rank)
    num_blocks, num_steps = (2, 1) if arguments.short else (_BLOCKS, _STEPS_PER_BLOCK)
    with join_ranks(config) as ranks:
        runner = BlockRunner(config, ranks)
        facts = runner.facts(Variant())
        blocks = []
        for block in range(num_blocks):
            steps = [(block * num_steps + turn) % facts["num_steps"] + 1 for turn in range(num_steps)]
            blocks.append(runner.run(Block(variant=Variant(), steps=steps, data="loader")))
        mine = [
            [block[name] for name in ("seconds", "num_tokens", "num_positions", "loss_sum", "num_targets")]
            for block in blocks
        ]
        memory = [torch.cuda.max_memory_allocated(ranks.device), torch.cuda.max_memory_reserved(ranks.device)]
        every, peaks = ranks.gather(np.array(mine)), ranks.gather(np.array(memory))
        if ranks.is_first:
            write_json(arguments.out / "found.json", _make_found(every, peaks, facts, num_steps))


def _make_found(every: np.ndarray, peaks: np.ndarray, facts: dict[str, Any], num_steps: int) -> dict[str, Any]:
    """Return the figures; `every`: (ranks, blocks, what)."""
    seconds, totals = every[..., 0].max(axis=0), every.sum(axis=0)
    return {
        "block_seconds": seconds.tolist(),
        "block_tokens": totals[:, 1].tolist(),
        "tokens_per_second": float(totals[:, 1].sum() / seconds.sum()),
        "step_seconds": float(np.median(seconds) / num_steps),
        "positions_per_token": float(totals[:, 2].sum() / totals[:, 1].sum()),
        "loss": float(totals[:, 3].sum() / totals[:, 4].sum()),
        "allocated_gib": float(peaks[:, 0].max() / 2**30),
        "reserved_gib": float(peaks[:, 1].max() / 2**30),
        "warm_up_seconds": facts["warm_up_seconds"],
    }


if __name__ == "__main__":
    end_with_parent()
    try:
        main()
        code = 0
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
