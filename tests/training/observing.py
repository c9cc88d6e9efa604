"""A rank that says what a step of it takes of memory: `main` is what ForkedRanks runs."""

import dataclasses
import sys
from pathlib import Path

import torch

from training.config import read_config
from training.probing.observed_memory import observe_memory
from training.process.distributed import join_ranks
from training.process.files import write_json


def main():
    """Write observed-RANK.json to the work folder."""
    config = read_config(Path(sys.argv[-1]))
    torch.set_num_threads(1)
    with join_ranks(config) as ranks:
        found = observe_memory(config, ranks)
        write_json(config.work_dir / f"observed-{ranks.rank}.json", dataclasses.asdict(found))
    return 0
