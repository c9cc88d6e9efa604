"""A stage ends with whoever started it, so that no training is ever left running by itself."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"}
_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_LOOKS = 0.5


def end_with_parent() -> None:
    """Send this process SIGTERM once its parent is gone, or the parent of the shell that runs it.

    A stage's command is often run by a shell, which outlives the DVC process that started it; hence the look at the
    grandparent. Linux tells of a parent's death at once; elsewhere, and for the grandparent, a thread looks.
    """
    set_parent_death_signal(signal.SIGTERM)
    watched = _ancestors_that_matter()
    if watched:
        threading.Thread(target=_watch, args=(watched,), name="end-with-parent", daemon=True).start()


def set_parent_death_signal(number: int) -> None:
    """Ask Linux for `number` when the thread that started this process ends; does nothing elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def parent_death_signal_setter(number: int) -> Callable[[], None]:
    """Return a `preexec_fn` that sets the signal and ends the child if its parent is gone already."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def set_signal() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return set_signal


def _ancestors_that_matter() -> list[tuple[int, Callable[[], bool]]]:
    """Return (pid, is it gone?) of the parent and, where the parent is a shell, of the shell's parent."""
    parent = os.getppid()
    watched: list[tuple[int, Callable[[], bool]]] = [(parent, lambda: os.getppid() != parent)]
    if parent <= 1 or _command_of(parent) not in _SHELLS or _is_interactive(parent):
        return watched if parent > 1 else []
    grandparent = _parent_of(parent)
    if grandparent is not None and grandparent > 1:
        watched.append((grandparent, lambda: _parent_of(parent) not in (grandparent, None)))
    return watched


def _watch(watched: list[tuple[int, Callable[[], bool]]]) -> None:
    while not any(is_gone() for _, is_gone in watched):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _is_interactive(shell: int) -> bool:
    """Return True for a shell without `-c`: somebody types there, and its parent is not ours to watch."""
    try:
        arguments = Path(f"/proc/{shell}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return True
    return not any(part.startswith(b"-") and b"c" in part for part in arguments[1:3])


def _parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])
