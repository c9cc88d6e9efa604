"""`python -m tests.phantom CARD NUMBER COMMAND ...`: run a command on so many cards that are not there."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.phantom.build import build, make_environment

if __name__ == "__main__":
    card, number, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        given = make_environment(build(Path(scratch)), card, num_cards=int(number))
        sys.exit(subprocess.run(command, env={**os.environ, **given}, check=False).returncode)
