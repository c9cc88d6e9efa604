"""A process ends with its parent, also where that ended before anybody could ask to be told."""

import os
import signal
import subprocess
import sys

import pytest

ASK = "import sys; from ddp_audit.process.lifeline import set_parent_death_signal as ask; "


@pytest.mark.parametrize("is_orphan", [False, True])
def test_a_process_whose_parent_is_gone_already_is_killed_at_once(is_orphan):
    parent = 1 if is_orphan else os.getpid()
    done = subprocess.run([sys.executable, "-c", ASK + f"ask(15, parent={parent})"], check=False)
    assert done.returncode == (-signal.SIGKILL if is_orphan else 0)
