"""A child process with everything it starts: in a session of its own, its output read live, ended as a whole.

`python -m flows.child PARENT ARGUMENTS` is the command line of DVC, which ends with the process PARENT.
"""

import contextlib
import contextvars
import itertools
import logging
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import psutil

from ddp_audit.process.lifeline import set_parent_death_signal
from tasks.process.failure import end_without_teardown
from tasks.process.proxies import restore_proxies

VERBOSE = "DDP_COMPARE_VERBOSE"
"""Environment variable: where it is set, the terminal shows DVC's own lines, too."""
_SECONDS_TO_SAVE, _MOST_SECONDS_TO_SAVE = 15.0, 620.0
"""Of any process, and as long as a stage trains: more than that gives its ranks."""
_SECONDS_BETWEEN_LOOKS = 0.1
_CHUNK_BYTES = 65_536
_LAST_BYTES, _LAST_SECONDS = 1 << 20, 5.0
"""More than a pipe or a terminal holds, and how long it is waited for: what is read once the child has ended."""


def run_child(command: list[str], *, env: dict[str, str], on_output: Callable[[bytes], None]) -> int:
    """Run `command` to its end and return its exit code, negative for a signal; output goes to `on_output` as it comes.

    On a terminal the child gets a terminal too, so that its progress bars live. Nothing that it started is left
    when this returns. On any exception, such as Ctrl-C or a cancellation, the whole tree gets SIGTERM, 15 seconds
    to save, beside what its ranks are given for it, then SIGKILL; another exception meanwhile shortens the wait to
    nothing.
    """
    reading, writing = pty.openpty() if sys.stderr.isatty() else os.pipe()
    with contextlib.suppress(termios.error, OSError):  # as large as ours; a pipe has no size
        termios.tcsetwinsize(writing, termios.tcgetwinsize(sys.stderr.fileno()))
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, env=env, start_new_session=True
        )
    finally:
        os.close(writing)
    # The Prefect run that the lines belong to is found through the context.
    listener = threading.Thread(
        target=contextvars.copy_context().run, args=(_listen, reading, process, on_output), name="listener", daemon=True
    )
    listener.start()
    try:
        process.wait()
    finally:
        try:
            end_group(process)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            # However long the last words take: whoever takes them closes its files next.
            listener.join()
    return process.returncode


def end_group(
    process: subprocess.Popen[bytes], *, seconds_to_save: float = _SECONDS_TO_SAVE, is_leader_alone: bool = False
) -> None:
    """End what is left of the session that the process leads, and what descends from it.

    With `is_leader_alone` the others are not asked: they learn of the leader's end by themselves.
    """
    with _ignore_sigterm():
        living = _Session(process.pid)
        try:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.kill if is_leader_alone else os.killpg)(process.pid, signal.SIGTERM)
            asked_at = time.monotonic()
            deadline = asked_at + seconds_to_save
            while (processes := living.look()) and time.monotonic() < deadline:
                if any(map(_may_save, processes)):
                    deadline = min(time.monotonic(), asked_at + _MOST_SECONDS_TO_SAVE) + seconds_to_save
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            for left in living.look():
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
            process.wait()


def _may_save(process: psutil.Process) -> bool:
    """Return whether it is the stage that trains, which gives its ranks the time that their checkpoint takes."""
    try:
        return ("-m", "tasks.train") in itertools.pairwise(process.cmdline())
    except psutil.Error:
        return False


@contextlib.contextmanager
def _ignore_sigterm() -> Iterator[None]:
    """Ignore further SIGTERMs: Linux tells of a parent's death once for each of its threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Session:
    """The processes of a session that still live, with their descendants in whatever session these are."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._known: set[psutil.Process] = set()
        self.look()

    def look(self) -> set[psutil.Process]:
        """Return those that live now; a descendant stays known when the process that started it is gone."""
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if os.getsid(pid) == self._leader:
                    self._known.add(psutil.Process(pid))
        for process in list(self._known):
            try:
                self._known.update(process.children(recursive=True))
                is_alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                is_alive = False
            if not is_alive:
                self._known.discard(process)
        return self._known


def _listen(reading: int, process: subprocess.Popen[bytes], on_output: Callable[[bytes], None]) -> None:
    num_last, waited = 0, 0.0
    with os.fdopen(reading, "rb", buffering=0) as output:
        while num_last < _LAST_BYTES and waited < _LAST_SECONDS:
            has_ended, begun_at = process.returncode is not None, time.monotonic()
            ready, _, _ = select.select([output], [], [], 0.5)
            waited += (time.monotonic() - begun_at) * has_ended
            if not ready:
                # A process that outlived the child may hold the other end open for ever, and write into it.
                if has_ended:
                    return
                continue
            try:
                chunk = output.read(_CHUNK_BYTES)
            except OSError:  # how Linux says that nobody has the other end of a terminal open any more
                return
            if not chunk:
                return
            num_last += len(chunk) * has_ended
            on_output(chunk)


def make_environment(interpreter: str) -> dict[str, str]:
    """Return our environment, with the interpreter's folder first in PATH so that `python` means this one.

    What opens the Prefect server is not in it: a stage needs none.
    """
    folder = str(Path(interpreter).parent)
    kept = {name: value for name, value in os.environ.items() if not name.endswith("API_AUTH_STRING")}
    return {**restore_proxies(kept), "PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])}


def _main() -> int:
    """Run DVC; asked to end, it lets the stage's command finish, which got the signal too and may be saving.

    Then DVC reports the command's exit code and frees its locks, as after any other failure.
    """
    parent, *arguments = sys.argv[1:]
    set_parent_death_signal(signal.SIGKILL, parent=int(parent))

    def end_if_idle(number: int, _frame: FrameType | None) -> None:
        if not psutil.Process().children():
            sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end_if_idle)
    from dvc.cli import main

    if not os.environ.get(VERBOSE):
        # Its bars, one for every path of every stage, stay off at this level.
        for name in ("dvc.progress", "dvc_data.callbacks"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    # Eight stages would say eight times how to add dvc.lock to git.
    logging.getLogger("dvc.repo.scm_context").setLevel(logging.WARNING)
    return int(main(arguments))


if __name__ == "__main__":
    with end_without_teardown():
        sys.exit(_main())
