"""What a rank runs in the tests of the sweep: every sweep once, written by rank 0 into sweeps.json."""

import sys
from pathlib import Path

from training.config import read_config
from training.probing.sweep import sweep_exchange
from training.process.distributed import join_ranks
from training.process.files import write_json

NUM_REPEATS = 5
SIZES = (2**16, 2**18, 2**20)


def main() -> int:
    """Sweep the link of the ranks that the config file describes; return the exit code."""
    config = read_config(Path(sys.argv[-1]))
    with join_ranks(config) as ranks:
        found = {
            "sweep": sweep_exchange(ranks, sizes=SIZES, num_repeats=NUM_REPEATS, seconds_budget=5.0),
            "short_sweep": sweep_exchange(ranks, sizes=(2**16, 2**30), num_repeats=NUM_REPEATS, seconds_budget=0.1),
            "slept": sweep_exchange(
                ranks, sizes=(2**20, 2**21), num_repeats=NUM_REPEATS, seconds_budget=5.0,
                seconds_of_link=lambda num_bytes: num_bytes / 2**20 * 10e-3,
            ),
        }  # fmt: skip
        if ranks.is_first:
            write_json(config.work_dir / "sweeps.json", found)
    return 0
