"""A stage that does nothing but run the ranks of the config file that it is given, as the real ones run theirs.

`python -m tests.tasks.stage.rank_stage CONFIG`
"""

import json
import sys
from pathlib import Path

from tasks.stage.failure import exit_with_one_line
from tasks.stage.ranks import run_ranks
from tasks.stage.stopping import stop_on_signals


def main() -> None:
    """Run them to their end, or until asked to stop."""
    config = json.loads(Path(sys.argv[1]).read_bytes())
    with stop_on_signals() as stop:
        run_ranks(config, launcher="torchrun", stop=stop, follow=lambda _: None)


if __name__ == "__main__":
    exit_with_one_line(main, name="train")
