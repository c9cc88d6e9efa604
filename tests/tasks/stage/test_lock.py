"""One comparison at a time per machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.stage.failure import ExitCode, ResourceError
from tasks.stage.lock import machine_lock

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


def test_of_many_at_once_exactly_one_wins() -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", HOLD + "  import time; time.sleep(3)"], stdout=-1, stderr=-1, text=True)
        for _ in range(6)
    ]
    outcomes = [run.communicate()[0] for run in runs]
    assert sorted(outcomes) == ["", "", "", "", "", "held\n"]
