"""One comparison at a time per machine."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from multiprocessing import Pipe, get_context

import pytest

from tasks.process.failure import ExitCode, ResourceError
from tasks.process.lock import is_taken, lock_machine, lock_workspace, make_lock_name
from tests.processes import run_python

HOLD = (
    "from tasks.process.lock import lock_machine\n"
    "with lock_machine('training of cell x'):\n  print('held', flush=True)\n"
)


def _holder():
    process = subprocess.Popen([sys.executable, "-c", HOLD + "  input()"], stdin=-1, stdout=-1, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture(autouse=True)
def _own_lock(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_second_holder_is_refused_with_the_first_ones_pid_and_a_killed_one_frees_the_lock_by_itself():
    holder = _holder()
    try:
        with pytest.raises(ResourceError, match=rf"training of cell x, pid {holder.pid} on ") as caught:
            lock_machine("y").__enter__()
        assert caught.value.exit_code == ExitCode.RESOURCES
    finally:
        holder.kill()
        holder.communicate()
    with lock_machine("y"):
        pass


def test_a_lock_that_this_process_has_is_not_asked_for_again_and_is_freed_once():
    with lock_machine("outer"):
        with lock_machine("inner"):
            pass
        refused = run_python("-c", HOLD)
        assert f"outer, pid {os.getpid()} on " in refused.stderr
    assert _holder().communicate("\n")


def _hold_as_nobody(ways, name, *, is_silent):
    """Hold nobody's own lock as the user nobody, or this name with or without a word; until something is sent."""
    os.setgid(65534)
    os.setuid(65534)
    with contextlib.ExitStack() as stack:
        if name is None:
            stack.enter_context(lock_machine("nobody's training"))
        else:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(name)
            if not is_silent:
                listener.listen()
        ways.send("held")
        ways.recv()


@contextlib.contextmanager
def _held_by_nobody(name=None, *, is_silent=False):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    ours, theirs = Pipe()
    other = get_context("fork").Process(target=_hold_as_nobody, args=(theirs, name), kwargs={"is_silent": is_silent})
    other.start()
    assert ours.recv() == "held"
    try:
        yield ours
    finally:
        if other.is_alive():
            ours.send("end")
        other.join()


def _lock_of_nobody():
    return f"{make_lock_name().rpartition('/')[0]}/65534"


def test_another_users_training_costs_a_warning_and_our_own_is_still_alone(caplog):
    with _held_by_nobody() as other, lock_machine("ours"):
        assert "ours: another comparison may be training on this machine (of the user nobody)" in caplog.text
        refused = run_python("-c", HOLD)
        assert f"ours, pid {os.getpid()} on " in refused.stderr
        other.send("end")
        while is_taken(_lock_of_nobody()):
            time.sleep(0.01)
        refused = run_python("-c", HOLD)
        assert f"ours, pid {os.getpid()} on " in refused.stderr


def test_a_holder_tells_another_user_nothing_of_itself():
    with _held_by_nobody(), socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(10)
        caller.connect(_lock_of_nobody())
        assert caller.recv(4096) == b""
    with lock_machine("ours"), socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(10)
        caller.connect(make_lock_name())
        assert b'"purpose": "ours"' in caller.recv(4096)


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_user_who_takes_the_name_of_our_lock_keeps_us_from_nothing(is_silent, caplog):
    with _held_by_nobody(make_lock_name(), is_silent=is_silent), lock_machine("ours"):
        pass
    assert "going on without the machine's lock" in caplog.text


@pytest.mark.parametrize("place", [".work", ".work/comparison.lock"])
@pytest.mark.parametrize("kind", ["link to nowhere", "link to itself", "folder", "fifo", "file"])
def test_what_stands_in_the_place_of_the_folders_lock_is_one_line_or_no_matter(place, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    if kind.startswith("link"):
        path.symlink_to(path if kind == "link to itself" else tmp_path / "nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir() if kind == "folder" else path.touch()
    if (path.name, kind) in [(".work", "folder"), ("comparison.lock", "file"), ("comparison.lock", "fifo")]:
        with lock_workspace("x"):
            return
    with pytest.raises(ResourceError, match="remove what stands in its place, then run again"), lock_workspace("x"):
        pass


def _like_anybody(*command):
    """Return the command as one that may not write where it is not allowed to, though root types it."""
    if os.geteuid() != 0:
        return list(command)
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, to give up root's power over files")
    less = "-dac_override,-dac_read_search,-fowner"
    return ["setpriv", f"--bounding-set={less}", f"--inh-caps={less}", *command]


@pytest.mark.parametrize("place", ["", ".work", "data/runs"])
def test_a_folder_that_is_not_ours_is_one_line_with_whose_it_is_and_the_remedy(place, tmp_path, project):
    folder = tmp_path / "project"
    theirs = folder / place
    theirs.mkdir(parents=True)
    shutil.copy(project / "params.yaml", folder)
    if os.geteuid() == 0:
        os.chown(theirs, 65534, 65534)
    theirs.chmod(0o555)
    ran = subprocess.run(
        _like_anybody(sys.executable, "-m", "flows"), cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(project)},
    )  # fmt: skip
    theirs.chmod(0o755)
    assert ran.returncode == ExitCode.RESOURCES, ran.stderr
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"ddp-compare: {theirs}: permission denied")
    assert ("it belongs to nobody; `sudo chown -R $USER .`" if os.geteuid() == 0 else "chmod") in line
    assert not (folder / ".work" / "comparison.lock").exists()
