"""A rank ends with the torchrun that started it; standard library only, so that it holds before torch is imported."""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_LOOKS = 1.0


def end_with_parent() -> None:
    """Have this process killed (SIGKILL) as soon as its parent is gone.

    Every rank has a session of its own, so that no signal to torchrun's group reaches it. Linux tells of the parent's
    death at once; a thread looks as well, which is all there is elsewhere. Killing is safe at any moment: checkpoints
    are whole or absent.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the call: then no signal ever comes.
    _end_if_orphaned(parent)
    threading.Thread(target=_watch, args=(parent,), name="end-with-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        _end_if_orphaned(parent)


def _end_if_orphaned(parent: int) -> None:
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
