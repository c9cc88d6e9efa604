"""Where the time of the main thread goes: every moment counts once, for the innermost activity that is under way."""

import mmap
import os
from collections.abc import Callable
from typing import Any

from ddp_compare_observer.record import read_clock

SCRIPT, DATA, FORWARD, BACKWARD, EXCHANGE, OPTIMIZER = "script", "data", "forward", "backward", "exchange", "optimizer"
LOGGING, CHECKPOINT, EVALUATION = "logging", "checkpoint", "evaluation"
NETWORK, SUBPROCESS = "network", "subprocess"
OBSERVER = "observer"

_SECTIONS = {DATA: 1, FORWARD: 2, BACKWARD: 3, OPTIMIZER: 4, EXCHANGE: 5, CHECKPOINT: 6}
"""As training/process/heartbeat.py of ddp-compare numbers them for its watchdog."""
_ON_DEVICE = {FORWARD, BACKWARD, EXCHANGE, OPTIMIZER, CHECKPOINT, EVALUATION}
_WORDS_PER_RANK, _PID, _POSITION = 8, 0, 1


class Place:
    """Where this rank is, in memory that the audit's watchdog sees too; without a file nobody looks."""

    def __init__(self, file: str | None, *, rank: int) -> None:
        self._words: Any = [0] * _WORDS_PER_RANK
        if file is not None:
            handle = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            words = memoryview(mmap.mmap(handle, 0)).cast("q")
            os.close(handle)
            self._words = words[rank * _WORDS_PER_RANK : (rank + 1) * _WORDS_PER_RANK]
        self._words[_PID] = os.getpid()
        self._place = 0

    def begin(self, step: int) -> None:
        """A step begins."""
        self._place = step << 32

    def enter(self, section: int) -> None:
        """Another part of it begins; before the first step, where loading may take long, nothing is told."""
        if self._place:
            self._place += 256
            self._words[_POSITION] = self._place | section


class Timeline:
    """Seconds by activity."""

    def __init__(self, place: Place) -> None:
        self.total: dict[str, float] = {}
        """Since the start."""
        self.mark: Callable[[str], None] = lambda _kind: None
        """Told what a device works for from here on."""
        self._place = place
        self._stack = [SCRIPT]
        self._at = read_clock()
        self._taken: dict[str, float] = {}

    def enter(self, kind: str) -> None:
        """An activity begins."""
        self._count()
        if len(self._stack) == 1 and self._stack[0] in (NETWORK, SUBPROCESS) and kind != OBSERVER:
            # What began between two activities is over when the next one begins.
            self._stack[0] = SCRIPT
        self._stack.append(kind)
        if section := _SECTIONS.get(kind):
            self._place.enter(section)
        if kind in _ON_DEVICE:
            self.mark(kind)

    def leave(self) -> None:
        """The innermost one ends."""
        self._count()
        if len(self._stack) > 1 and self._stack.pop() in _ON_DEVICE:
            self.mark(self._stack[-1])

    def charge(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the function returns; its time is the observer's own."""
        self.enter(OBSERVER)
        try:
            return function(*arguments)
        finally:
            self.leave()

    def name_the_rest(self, kind: str) -> None:
        """From here on whatever is no activity of its own is of this kind, until another is named."""
        if len(self._stack) == 1:
            self._count()
            self._stack[0] = kind

    def take(self) -> dict[str, float]:
        """Return the seconds by activity since the last call."""
        self._count()
        found = {kind: all_of_it - self._taken.get(kind, 0.0) for kind, all_of_it in self.total.items()}
        self._taken = dict(self.total)
        return {kind: round(seconds, 7) for kind, seconds in found.items() if seconds > 0}

    def look(self) -> dict[str, float]:
        """Return the seconds by activity since the start."""
        self._count()
        return dict(self.total)

    def _count(self) -> None:
        now = read_clock()
        kind = self._stack[-1]
        self.total[kind] = self.total.get(kind, 0.0) + now - self._at
        self._at = now
