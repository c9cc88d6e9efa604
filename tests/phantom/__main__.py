"""`python -m tests.phantom COMMAND ...`: run a command on cards that are not there, and say what it did on them.

`python -m tests.phantom --card T4 --cards 2 python -m training --config FILE`
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.phantom.build import build, find_missing, list_unanswered
from tests.phantom.cards import CARDS
from tests.phantom.counts import Counts, read_counts
from tests.phantom.symbols import UNANSWERED


def main() -> int:
    """Return the command's exit code."""
    parser = argparse.ArgumentParser(prog="tests.phantom", description=__doc__)
    parser.add_argument("--card", default="H100-80", choices=CARDS)
    parser.add_argument("--cards", type=int, default=1, help="how many of them")
    parser.add_argument(
        "--known", action="store_true", help=f"write {UNANSWERED.name} anew: all without an answer has been looked at"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if missing := find_missing():
        parser.error(f"the phantom cannot be built here: {missing}")
    with tempfile.TemporaryDirectory() as scratch:
        phantom = build(Path(scratch) / "library")
        if arguments.known:
            UNANSWERED.write_text("\n".join(sorted(list_unanswered(phantom))) + "\n")
        if not arguments.command:
            return 0
        counts = Path(scratch) / "counts"
        given = phantom.environment(arguments.card, num_cards=arguments.cards, counts=counts)
        code = subprocess.run(arguments.command, env={**os.environ, **given}, check=False).returncode
        for one in read_counts(counts):
            sys.stderr.write(_describe(one))
    return code


def _describe(counts: Counts) -> str:
    held = ", ".join(f"{counts.highest_bytes[device] / 2**30:.2f} GiB of card {device}" for device in counts.devices)
    return (
        f"process {counts.pid}: {held or 'no card'}; {counts.launches} kernels, {counts.waits} waits of the host, "
        f"{counts.collectives} collectives, {counts.plans} plans of cuDNN, {counts.device_allocations} allocations\n"
    )


if __name__ == "__main__":
    sys.exit(main())
