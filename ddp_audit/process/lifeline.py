"""A process that ends with its parent; standard library only, so that it holds in a rank before torch is imported."""

import ctypes
import os
import signal
import sys
import threading
import time


class StopEvent(threading.Event):
    """An event that takes no lock: a signal handler that sets it may have interrupted the thread that holds one."""

    _is_set = False

    def is_set(self) -> bool:
        """Return True once asked to stop."""
        return self._is_set

    def set(self) -> None:
        """Ask to stop."""
        self._is_set = True

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether asked to stop, after `timeout` seconds unless that is known before."""
        if timeout is not None and not self._is_set:
            time.sleep(timeout)
        return self._is_set


_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_LOOKS = 1.0
PRCTL = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None
"""Found here, since a process that was only just forked must not look for it."""


def set_parent_death_signal(number: int, *, parent: int | None = None) -> None:
    """Have Linux send this process `number` when the thread that started it ends; elsewhere nothing does.

    Kills this process if its parent is not `parent` any more: no signal tells of an end before the call.
    """
    if PRCTL is not None:
        PRCTL(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_parent() -> None:
    """Have this rank killed (SIGKILL) as soon as the torchrun that started it is gone.

    Every rank has a session of its own, so that no signal to torchrun's group reaches it. A thread looks as well,
    which is all there is where the system tells nothing. Killing is safe at any moment: checkpoints are whole or
    absent.
    """
    parent = os.getppid()
    set_parent_death_signal(signal.SIGKILL, parent=parent)
    threading.Thread(target=_watch, args=(parent,), name="end-with-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGKILL)
