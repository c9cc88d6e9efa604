"""The processes of a launch: started in a session of their own, and ended with whatever they have started."""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ddp_audit.process.torchrun import NO_SHARED_STORE, PRCTL, Launch, list_torchrun_words, read_last_lines, tell_end

_SET_CHILD_SUBREAPER = 36
_SECONDS_TO_END = 2.0
_MOST_ROUNDS = 50


class Started(Launch):
    """One command line and all that comes of it.

    What it starts stays a descendant of this process however it forks: while it runs, and there is one at a time, whose
    parent has ended is given to us.
    """

    def __init__(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], logs: Path) -> None:
        _adopt_orphans(is_wanted=True)
        self._before = list_descendants()
        self.left: list[str] = []
        """What still ran when the command line had ended by itself: number and words of each process."""
        super().__init__(command, log_folder=logs, environment=environment, folder=folder)

    def stop(self, *, grace_seconds: float) -> None:
        """End it (SIGTERM, after the grace time SIGKILL), and all that it has started."""
        try:
            if self.is_running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGTERM)
                _wait(lambda: not self.is_running, grace_seconds)
            else:
                _wait(lambda: not self._list_own(), _SECONDS_TO_END)
                self.left = [_tell(pid) for pid in self._list_own()]
        finally:
            for _ in range(_MOST_ROUNDS):
                if not (own := self._list_own()):
                    break
                for pid in own:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
            self._process.wait()
            self._log_cap.close()
            _adopt_orphans(is_wanted=False)

    def explain_end(self, *, rank: int | None = None) -> str:
        """Return who caused the end and how, and on further lines the last words."""
        if rank is not None or self.find_root_cause() is not None:
            return super().explain_end(rank=rank)
        return tell_end("it", self._process.wait(), words=read_last_lines(self.file), folder=self.log_folder)

    def _list_own(self) -> list[int]:
        """Return the processes that came of it and still run; those that have ended are taken leave of."""
        own = [pid for pid in list_descendants() if pid not in self._before]
        for pid in own:
            if pid != self._process.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        self._process.poll()
        return [pid for pid in list_descendants() if pid not in self._before]


def make_torchrun(python: str, *, world_size: int, logs: Path) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment of a torchrun for one machine, to be followed by those of the script."""
    meeting = logs / "rendezvous"
    shutil.rmtree(meeting, ignore_errors=True)
    meeting.mkdir(mode=0o700, parents=True)
    return [python, *list_torchrun_words(meeting, world_size=world_size, logs=logs)], NO_SHARED_STORE


def list_descendants() -> list[int]:
    """Return the processes that this one or its children have started; none where the system does not tell."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            # Who is dead and not ours waits for a parent of its own.
            if state != "Z" or int(parent) == os.getpid():
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found, at = [], [os.getpid()]
    while at:
        below = children.get(at.pop(), [])
        found += below
        at += below
    return found


def _adopt_orphans(*, is_wanted: bool) -> None:
    if PRCTL is not None:
        PRCTL(_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0)


def _tell(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return f"{pid} ({words[-80:]})" if words else str(pid)
    return str(pid)


def _wait(is_over: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not is_over() and time.monotonic() < until:
        time.sleep(0.05)
