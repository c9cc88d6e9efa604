"""A stage ends with whoever started it."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tasks.process.stopping import STARTER

# A stand-in for DVC: it runs a shell that runs the stage and does not replace itself by it.
STAGE = (
    "import time; from tasks.process.stopping import end_with_parent; end_with_parent(); "
    "print('up', flush=True); time.sleep(60)"
)
PARENT = """\
import subprocess, sys
subprocess.run({command!r}, shell=True, executable="/bin/bash")
"""


@contextlib.contextmanager
def _stage_of(parent):
    """Wait until the stage is up; yield its process, the youngest descendant, and kill it in the end."""
    while parent.stdout.readline() != "up\n":
        pass
    stage = psutil.Process(parent.pid).children(recursive=True)[-1]
    try:
        yield stage
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            stage.kill()


@pytest.mark.parametrize("shell_stays", [False, True])
def test_a_stage_ends_within_seconds_of_the_kill_of_what_started_it(shell_stays):
    command = f'{sys.executable} -c "{STAGE}"' + ("; true" if shell_stays else "")
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(command=command)], stdout=-1, text=True)
    with _stage_of(parent) as stage:
        parent.kill()
        parent.wait()
        assert psutil.wait_procs([stage], timeout=30.0)[0], "by itself it goes on for a minute"


@pytest.mark.parametrize("is_detached", [False, True])
def test_a_stage_under_make_ends_with_the_shell_that_typed_it_unless_that_may_log_out(is_detached, tmp_path):
    (tmp_path / "Makefile").write_text(f'compare:\n\t@{sys.executable} -c "{STAGE}"\n')
    typed = f"{'nohup ' if is_detached else ''}make -s -C {tmp_path} compare; true"
    # These tests may run under nohup themselves.
    shell = subprocess.Popen(
        ["env", "--default-signal=HUP", "bash", "-c", typed], stdout=-1, stderr=-2, text=True, start_new_session=True
    )
    with _stage_of(shell) as stage:
        shell.kill()
        shell.wait()
        gone, left = psutil.wait_procs([stage], timeout=2.0 if is_detached else 30.0)
        assert (gone, left) == (([], [stage]) if is_detached else ([stage], []))


def test_a_stage_whose_flow_was_killed_before_it_could_ask_ends_at_once():
    def start(starter):
        environment = {**os.environ, STARTER: str(starter)}
        return subprocess.Popen([sys.executable, "-c", STAGE], stdout=-1, text=True, env=environment)

    flow = subprocess.Popen([sys.executable, "-c", ""])
    flow.wait()
    assert start(flow.pid).wait(timeout=40) == -signal.SIGTERM
    stage = start(os.getpid())
    try:
        assert stage.stdout.readline() == "up\n"
    finally:
        stage.kill()
        stage.wait()
