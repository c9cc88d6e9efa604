"""Which rank hangs: who is farthest behind, and for how long nothing has come from there."""

import contextlib
import mmap
import os
import signal
import tempfile
import time
from pathlib import Path

_WORDS, _PID, _POSITION = 8, 0, 1
"""Of each rank in the memory that they write into (observer/timeline.py)."""
_SECTIONS = ("start", "data", "forward", "backward", "update", "collective", "checkpoint")
_START_SECONDS = 900.0
_SECONDS_FOR_STACKS = 1.0


class Places:
    """Where ranks are, by the memory in which they say so; a context that owns it."""

    def __init__(self, *, world_size: int, patience: float) -> None:
        self._patience = patience
        # Memory, where the machine has a folder of it: a page of a file on a disk may block whoever writes to it.
        memory = Path("/dev/shm")
        handle, name = tempfile.mkstemp(prefix="ddp-audit-", dir=memory if memory.is_dir() else None)
        os.truncate(handle, world_size * _WORDS * 8)
        words = memoryview(mmap.mmap(handle, 0)).cast("q")
        self._ranks = [words[rank * _WORDS : (rank + 1) * _WORDS] for rank in range(world_size)]
        os.close(handle)
        self.file = Path(name)
        self._last, self._since = -1, time.monotonic()

    def __enter__(self) -> "Places":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.unlink(missing_ok=True)

    def find_hang(self) -> str:
        """Return which ranks hang, in words; empty where none does. Those who wait for another one wait as long."""
        places = [words[_POSITION] for words in self._ranks]
        if min(places) != self._last:
            self._last, self._since = min(places), time.monotonic()
        seconds = time.monotonic() - self._since
        if seconds < (self._patience if self._last else max(self._patience, _START_SECONDS)):
            return ""
        behind = [rank for rank, place in enumerate(places) if place == self._last]
        who = f"rank {behind[0]} hangs" if len(behind) == 1 else f"ranks {', '.join(map(str, behind))} hang"
        others = [f"; rank {rank} is {_tell(place)}" for rank, place in enumerate(places) if place != self._last]
        return f"{who} {_tell(self._last)}: nothing for {seconds:.0f} s{''.join(others)}"

    def ask_for_stacks(self) -> None:
        """Have every rank write its Python stacks to its log."""
        for words in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                if words[_PID]:
                    os.kill(words[_PID], signal.SIGUSR1)
        time.sleep(_SECONDS_FOR_STACKS)


def _tell(place: int) -> str:
    return f"in section {_SECTIONS[place & 0xFF]} of step {place >> 32}"
