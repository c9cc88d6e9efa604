"""A stage that does nothing but run the ranks of the config file that it is given, as the real ones run theirs.

`python -m tests.tasks.process.rank_stage CONFIG [PYTHON]`; PYTHON is what torchrun and the ranks are started with.
"""

import sys
from pathlib import Path

from tasks.process.failure import exit_with_one_line
from tasks.process.stopping import stop_on_signals
from tasks.ranks.cell_ranks import run_ranks
from training.config import read_config


def main():
    """Run them to their end, or until asked to stop."""
    config = read_config(Path(sys.argv[1]))
    sys.executable = sys.argv[2] if len(sys.argv) > 2 else sys.executable
    with stop_on_signals() as stop:
        run_ranks(config, launcher="torchrun", stop=stop, follow=lambda _: None)


if __name__ == "__main__":
    exit_with_one_line(main, name="train")
