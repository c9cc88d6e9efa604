"""A stage without a stage: has the ranks of a config trained, and ends as a stage does.

`python -m tests.tasks.ranks.launchers.driver CONFIG LAUNCHER [ADDRESS NUM_NODES]`
"""

import sys
from pathlib import Path

from tasks.process.failure import exit_with_one_line
from tasks.process.stopping import stop_on_signals
from tasks.ranks.cell_ranks import run_ranks
from tasks.ranks.launchers import Nodes
from training.config import read_config


def _main():
    config, launcher, *where = sys.argv[1:]
    nodes = None
    if where:
        nodes = Nodes(num_nodes=int(where[1]), address=where[0], wait_seconds=60.0, silence_seconds=30.0)
    with stop_on_signals() as stop:
        run_ranks(read_config(Path(config)), launcher=launcher, nodes=nodes, stop=stop, follow=lambda _: None)


if __name__ == "__main__":
    exit_with_one_line(_main, name="driver")
