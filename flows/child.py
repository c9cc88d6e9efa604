"""A child process with everything it starts: in a session of its own, heard live, ended as a whole."""

import contextlib
import contextvars
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

import psutil

from tasks.process.proxies import restore_proxies

_SECONDS_TO_SAVE = 15.0
_SECONDS_BETWEEN_LOOKS = 0.1
_CHUNK_BYTES = 65_536
_LAST_BYTES, _LAST_SECONDS = 1 << 20, 5.0
"""More than a pipe or a terminal holds, and how long it is waited for: what is read once the child has ended."""


def run_child(command: list[str], *, env: dict[str, str], hear: Callable[[bytes], None]) -> int:
    """Run `command` to its end and return its exit code, negative for a signal; output goes to `hear` as it comes.

    On a terminal the child gets a terminal too, so that its progress bars live. Nothing that it started is left
    when this returns. On any exception, such as Ctrl-C or a cancellation, the whole tree gets SIGTERM, 15 seconds
    to save, then SIGKILL; another exception meanwhile shortens the wait to nothing.
    """
    reading, writing = _open_terminal() if sys.stderr.isatty() else os.pipe()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, env=env, start_new_session=True
        )
    finally:
        os.close(writing)
    # The Prefect run that the lines belong to is found through the context.
    listener = threading.Thread(
        target=contextvars.copy_context().run, args=(_listen, reading, process, hear), name="listener", daemon=True
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
            # However long the last words take: whoever hears them closes its files next.
            listener.join()
    return process.returncode


def end_group(
    process: subprocess.Popen[bytes], *, seconds_to_save: float = _SECONDS_TO_SAVE, is_leader_alone: bool = False
) -> None:
    """End what is left of the session that the process leads, and what descends from it.

    With `is_leader_alone` the others are not asked: they learn of the leader's end by themselves.
    """
    with _ignore_sigterm():
        living = _Living(process.pid)
        try:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.kill if is_leader_alone else os.killpg)(process.pid, signal.SIGTERM)
            deadline = time.monotonic() + seconds_to_save
            while living.look() and time.monotonic() < deadline:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            for left in living.look():
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
            process.wait()


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


class _Living:
    """The processes of a session that still live, with their descendants in whatever session these are."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._known: set[psutil.Process] = set()
        self.look()

    def look(self) -> set[psutil.Process]:
        """Return those that live now; a descendant stays known when the process that started it is gone."""
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if os.getsid(pid) == self._session:
                    self._known.add(psutil.Process(pid))
        for process in list(self._known):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._known.update(process.children(recursive=True))
        self._known = {process for process in self._known if _is_alive(process)}
        return self._known


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _open_terminal() -> tuple[int, int]:
    """Return (side to read, side for the child) of a new terminal as large as ours."""
    reading, writing = pty.openpty()
    with contextlib.suppress(termios.error, OSError):
        termios.tcsetwinsize(writing, termios.tcgetwinsize(sys.stderr.fileno()))
    return reading, writing


def _listen(reading: int, process: subprocess.Popen[bytes], hear: Callable[[bytes], None]) -> None:
    try:
        for chunk in _read_chunks(reading, process):
            hear(chunk)
    finally:
        os.close(reading)


def _read_chunks(reading: int, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    num_last, waited = 0, 0.0
    while num_last < _LAST_BYTES and waited < _LAST_SECONDS:
        has_ended, begun_at = process.returncode is not None, time.monotonic()
        ready, _, _ = select.select([reading], [], [], 0.5)
        waited += (time.monotonic() - begun_at) * has_ended
        if not ready:
            # A process that outlived the child may hold the other end open for ever, and write into it.
            if has_ended:
                return
            continue
        try:
            chunk = os.read(reading, _CHUNK_BYTES)
        except OSError:  # how Linux says that nobody has the other end of a terminal open any more
            return
        if not chunk:
            return
        num_last += len(chunk) * has_ended
        yield chunk


def make_environment(interpreter: str) -> dict[str, str]:
    """Return our environment, with the interpreter's folder first in PATH so that `python` means this one.

    What opens the Prefect server is not in it: a stage needs none.
    """
    folder = str(Path(interpreter).parent)
    kept = {name: value for name, value in os.environ.items() if not name.endswith("API_AUTH_STRING")}
    return {**restore_proxies(kept), "PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])}
