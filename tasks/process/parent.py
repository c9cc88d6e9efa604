"""A stage ends with whoever started it, so that no training is ever left running by itself."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ddp_audit.process.lifeline import set_parent_death_signal

_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"}
_MAKES = {"make", "gmake"}
_SECONDS_BETWEEN_LOOKS = 0.5

STARTER = "DDP_COMPARE_STARTER"
"""Environment variable: the process that the commands of a flow descend from."""


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
    parent = _find_parent(child)
    while parent is not None and parent > 1:
        links.append((child, parent))
        command = _read_command(parent)
        if not (
            (command in _SHELLS and not _is_interactive(parent))
            or (command in _MAKES and not _may_outlive_its_shell(parent))
        ):
            break
        child, parent = parent, _find_parent(parent)
    return links


def _watch(links: list[tuple[int, int]]) -> None:
    # Of a child that is gone itself nothing is known: the link below it tells.
    while all(_find_parent(child) in (parent, None) for child, parent in links):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)


def _may_outlive_its_shell(pid: int) -> bool:
    """Return True if whoever typed the command may log out: nohup, setsid, or a terminal, whose end comes as SIGHUP."""
    is_session_of_its_own = os.getsid(pid) == pid
    return is_session_of_its_own or signal.getsignal(signal.SIGHUP) == signal.SIG_IGN or _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _read_command(pid: int) -> str:
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


def _find_parent(pid: int) -> int | None:
    if pid == os.getpid():
        return os.getppid()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])
