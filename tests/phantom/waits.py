"""What a rank does to tell how often the host waits for its card in a step: `main` is an entry of ForkedRanks.

Each rank writes waits-RANK.json: of every step of the segment, how often the host waited, as the phantom counts it.
"""

import os
import sys
from pathlib import Path

import torch

from tests.gpu.steps import open_steps
from tests.phantom.counts import read_counts
from training.config import read_config
from training.data.batches import prefetch_micro_batches
from training.process.distributed import join_ranks
from training.process.files import write_json


def main():
    """Warm up, and write what the steps wait for."""
    config = read_config(Path(sys.argv[-1]))
    torch.set_num_threads(1)
    with join_ranks(config) as ranks:
        trainer, plan, make = open_steps(config, ranks)
        trainer.warm_up(make(plan.find_largest_step())[-1].to(ranks.device))
        found = []
        for step, micro_batches, _ in prefetch_micro_batches(make, range(1, plan.num_steps + 1), ranks.device):
            before = _count_waits()
            trainer.train_step(micro_batches, num_targets=plan.step(step).num_targets, learning_rate=1e-3)
            found.append(_count_waits() - before)
        write_json(config.work_dir / f"waits-{ranks.rank}.json", found)
    return 0


def _count_waits():
    (own,) = (one for one in read_counts(Path(os.environ["PHANTOM_COUNTS"])) if one.pid == os.getpid())
    return own.waits
