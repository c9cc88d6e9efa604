"""`python -m flows.tied_dvc PARENT ARGUMENTS`: the command line of DVC, which ends with the process PARENT.

Asked to end by SIGTERM, it lets the stage's command finish, which got the signal too and may be saving: then DVC
reports the command's exit code and frees its locks, as after any other failure.
"""

import logging
import os
import signal
import sys
from types import FrameType

import psutil

from ddp_audit.process.lifeline import set_parent_death_signal
from flows.output import VERBOSE


def _main() -> int:
    parent, *arguments = sys.argv[1:]
    set_parent_death_signal(signal.SIGKILL, parent=int(parent))
    signal.signal(signal.SIGTERM, _end_if_idle)
    from dvc.cli import main

    if not os.environ.get(VERBOSE):
        # Its bars, one for every path of every stage, stay off at this level.
        for name in ("dvc.progress", "dvc_data.callbacks"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    # Eight stages would say eight times how to add dvc.lock to git.
    logging.getLogger("dvc.repo.scm_context").setLevel(logging.WARNING)
    return int(main(arguments))


def _end_if_idle(number: int, _frame: FrameType | None) -> None:
    if not psutil.Process().children():
        sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(_main())
