"""A stage that does nothing but run the ranks of the config file that it is given, as the real ones run theirs.

`python -m tests.tasks.process.rank_stage CONFIG [LAUNCHER [ADDRESS NUM_NODES]]`; torchrun starts them by default.
"""

import sys
from pathlib import Path

from tasks.process.failure import exit_with_one_line
from tasks.process.stopping import stop_on_signals
from tasks.ranks.cell_ranks import run_ranks
from tasks.ranks.launchers import Nodes
from training.config import read_config


def _main():
    """Run them to their end, or until asked to stop."""
    config, *how = sys.argv[1:]
    launcher, *where = how or ["torchrun"]
    nodes = None
    if where:
        nodes = Nodes(num_nodes=int(where[1]), address=where[0], wait_seconds=60.0, silence_seconds=30.0)
    with stop_on_signals() as stop:
        run_ranks(read_config(Path(config)), launcher=launcher, nodes=nodes, stop=stop, follow=lambda _: None)


if __name__ == "__main__":
    exit_with_one_line(_main, name="train")
