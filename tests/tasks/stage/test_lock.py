"""One comparison at a time per machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.stage.failure import ExitCode, ResourceError
from tasks.stage.lock import machine_lock

pytestmark = pytest.mark.alone

HOLD = (
    "from tasks.stage.lock import machine_lock\nwith machine_lock('training of cell x'):\n  print('held', flush=True)\n"
)


def _holder() -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD + "  input()"], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_a_second_holder_is_refused_with_the_first_ones_pid() -> None:
    holder = _holder()
    try:
        with (
            pytest.raises(ResourceError, match=rf"training of cell x, pid {holder.pid} on ") as caught,
            machine_lock("y"),
        ):
            pass
        assert caught.value.exit_code == ExitCode.RESOURCES
    finally:
        holder.communicate("\n")


def test_a_killed_holder_frees_the_lock_by_itself() -> None:
    holder = _holder()
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    with machine_lock("y"):
        pass


def test_of_twenty_at_once_exactly_one_wins_and_all_others_name_it() -> None:
    wins = HOLD + "  input()"
    runs = [
        subprocess.Popen([sys.executable, "-c", wins], stdin=-1, stdout=-1, stderr=-1, text=True) for _ in range(20)
    ]
    waiting = list(runs)
    while len(waiting) > 1:
        waiting = [run for run in waiting if run.poll() is None]
    (winner,) = waiting
    assert winner.communicate("\n")[0] == "held\n"
    for run in runs:
        if run is not winner:
            out, said = run.communicate()
            assert (out, run.returncode) == ("", 1)
            assert f"training of cell x, pid {winner.pid} on " in said.splitlines()[-1]


def test_a_lock_that_this_process_has_is_not_asked_for_again_and_is_freed_once() -> None:
    with machine_lock("outer"):
        with machine_lock("inner"):
            pass
        refused = subprocess.run([sys.executable, "-c", HOLD], capture_output=True, text=True, check=False)
        assert f"outer, pid {os.getpid()} on " in refused.stderr
    assert _holder().communicate("\n")
