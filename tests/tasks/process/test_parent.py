"""A stage ends with whoever started it."""

import os
import signal
import subprocess
import sys
import time

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


def _stage_of(parent):
    """Wait until the stage is up and return its pid: the youngest descendant."""
    assert parent.stdout.readline() == "up\n"
    pid = parent.pid
    while children := _children(pid):
        pid = children[0]
    return pid


def _children(pid):
    found = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def _is_gone_within(pid, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("shell_stays", [False, True])
def test_a_stage_ends_within_seconds_of_the_kill_of_what_started_it(shell_stays):
    command = f'{sys.executable} -c "{STAGE}"' + ("; true" if shell_stays else "")
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(command=command)], stdout=-1, text=True)
    stage = _stage_of(parent)
    try:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert _is_gone_within(stage, 30.0), "by itself it goes on for a minute"
    finally:
        if not _is_gone_within(stage, 0.1):
            os.kill(stage, signal.SIGKILL)


@pytest.mark.parametrize("is_detached", [False, True])
def test_a_stage_under_make_ends_with_the_shell_that_typed_it_unless_that_may_log_out(is_detached, tmp_path):
    (tmp_path / "Makefile").write_text(f'compare:\n\t@{sys.executable} -c "{STAGE}"\n')
    typed = f"{'nohup ' if is_detached else ''}make -s -C {tmp_path} compare; true"
    # These tests may run under nohup themselves.
    shell = subprocess.Popen(
        ["env", "--default-signal=HUP", "bash", "-c", typed], stdout=-1, stderr=-2, text=True, start_new_session=True
    )
    while shell.stdout.readline() != "up\n":
        pass
    stage = shell.pid
    while children := _children(stage):
        stage = children[0]
    try:
        os.kill(shell.pid, signal.SIGKILL)
        shell.wait()
        assert _is_gone_within(stage, 2.0 if is_detached else 30.0) is not is_detached
    finally:
        if not _is_gone_within(stage, 0.1):
            os.kill(stage, signal.SIGKILL)


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
