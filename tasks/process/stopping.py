"""Being asked to stop: by a scheduler (SIGTERM), a closed terminal (SIGHUP), by hand (SIGINT), or by a parent's end.

A stage ends with whoever started it, so that no training is ever left running by itself.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ddp_audit.process.lifeline import StopEvent, set_parent_death_signal
from training.process.failure import EXIT_PREEMPTED

_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"}
_MAKES = {"make", "gmake"}
_SECONDS_BETWEEN_LOOKS = 0.5

STARTER = "DDP_COMPARE_STARTER"
"""Environment variable: the process that the commands of a flow descend from."""

_by_hand = False


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield the event that the first of these signals sets while inside; a second SIGINT raises KeyboardInterrupt.

    Whoever leaves without an exception is answered afterwards as before; a stop that is under way is not disturbed.
    """
    stop = StopEvent()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}

    def ask(number: int, _frame: FrameType | None) -> None:
        global _by_hand
        if number == signal.SIGINT:
            if _by_hand:
                raise KeyboardInterrupt
            _by_hand = True
        stop.set()

    _set_handlers(ask)
    signal.signal(signal.SIGINT, ask)
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)
    if stop.is_set():
        # It came when there was nothing left to stop.
        signal.raise_signal(signal.SIGINT if _by_hand else signal.SIGTERM)


def is_stopped_by_hand() -> bool:
    """Return True once `stop_on_signals` has seen a SIGINT."""
    return _by_hand


def exit_on_signals(name: str) -> None:
    """End this process with 75 and one line of `name` on SIGTERM or SIGHUP, as any `sys.exit` would."""

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        # Linux tells of a parent's death once for each of its threads.
        _set_handlers(signal.SIG_IGN)
        sys.stderr.write(f"{name}: stopped; what is finished is kept, and the next start goes on from there\n")
        sys.exit(EXIT_PREEMPTED)

    _set_handlers(leave)


def _set_handlers(act: "signal._HANDLER") -> None:
    signal.signal(signal.SIGTERM, act)
    # Under nohup a closed terminal is no request.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, act)


def end_with_parent() -> None:
    """Send this process SIGTERM once its parent is gone, or whoever started that, if the parent only waits for us.

    A stage's command is often run by a shell, which outlives the DVC process that started it, and `make` outlives the
    shell in which somebody typed it; hence the look at those further up. Linux tells of a parent's death at once;
    elsewhere, and for the others, a thread looks.
    """
    set_parent_death_signal(signal.SIGTERM)
    starter = os.environ.get(STARTER)
    if sys.platform == "linux" and starter and int(starter) not in _walk_ancestors():
        os.kill(os.getpid(), signal.SIGTERM)  # killed before we could ask to be told
    links = _list_watched_links()
    if sys.platform == "linux":
        del links[:1]  # a second SIGTERM would cut short what the first began
    if links:
        threading.Thread(target=_watch, args=(links,), name="end-with-parent", daemon=True).start()


def _walk_ancestors() -> Iterator[int]:
    parent = _find_parent(os.getpid())
    while parent:
        yield parent
        parent = _find_parent(parent)


def _list_watched_links() -> list[tuple[int, int]]:
    """Return (child, parent) from this process upwards, as far as the parents do nothing but wait for the child."""
    links: list[tuple[int, int]] = []
    child = os.getpid()
    for parent in _walk_ancestors():
        if parent == 1:
            break
        links.append((child, parent))
        command = _read(parent, "comm").decode().strip()
        is_waiting = command in _SHELLS and not _is_interactive(parent)
        if not is_waiting and not (command in _MAKES and not _may_outlive_its_shell(parent)):
            break
        child = parent
    return links


def _watch(links: list[tuple[int, int]]) -> None:
    # Of a child that is gone itself nothing is known: the link below it tells.
    while all(_find_parent(child) in (parent, None) for child, parent in links):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)


def _may_outlive_its_shell(pid: int) -> bool:
    """Return True if whoever typed the command may log out: nohup, setsid, or a terminal, whose end comes as SIGHUP."""
    if os.getsid(pid) == pid or signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return True
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
        return True
    return False


def _is_interactive(shell: int) -> bool:
    """Return True for a shell without `-c`: somebody types there, and its parent is not ours to watch."""
    return not any(part.startswith(b"-") and b"c" in part for part in _read(shell, "cmdline").split(b"\0")[1:3])


def _find_parent(pid: int) -> int | None:
    if pid == os.getpid():
        return os.getppid()
    stat = _read(pid, "stat").rpartition(b")")[2].split()
    return int(stat[1]) if stat else None


def _read(pid: int, name: str) -> bytes:
    """Return what /proc says of a process; nothing of one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
