"""Where the time of the main thread goes: every moment counts once, for the innermost activity that is under way."""

import mmap
import os
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from ddp_audit.observer.record import read_clock

SCRIPT, DATA, FORWARD, BACKWARD, EXCHANGE, OPTIMIZER = "script", "data", "forward", "backward", "exchange", "optimizer"
CHECKPOINT, EVALUATION = "checkpoint", "evaluation"
NETWORK, SUBPROCESS = "network", "subprocess"
OBSERVER = "observer"
_KINDS = (
    SCRIPT, DATA, FORWARD, BACKWARD, EXCHANGE, OPTIMIZER, CHECKPOINT, EVALUATION, NETWORK, SUBPROCESS,
    OBSERVER,
)  # fmt: skip

OTHERS = (CHECKPOINT, EVALUATION, NETWORK, SUBPROCESS)
"""What no step needs."""
_get_others = itemgetter(*OTHERS)

_SECTIONS = {DATA: 1, FORWARD: 2, BACKWARD: 3, OPTIMIZER: 4, EXCHANGE: 5, CHECKPOINT: 6, EVALUATION: 7}
"""As ddp_audit/running.py names them."""
_WORDS_PER_RANK, _PID, _POSITION = 8, 0, 1


class Place:
    """Where this rank is, in memory that the audit's watchdog sees too; without a file nobody looks."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self.words: Any = [0] * _WORDS_PER_RANK
        self.position = 0
        """Of the part of a step that is under way, above its section; 0 before the first step, where loading may take
        long and nothing is said."""

    def open(self, rank: int) -> None:
        """Be seen as this rank from now on."""
        if self._file is not None:
            handle = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            words: Any = memoryview(mmap.mmap(handle, 0)).cast("q")
            os.close(handle)
            self.words = words[rank * _WORDS_PER_RANK : (rank + 1) * _WORDS_PER_RANK]
            self.words[_PID] = os.getpid()

    def begin(self, step: int) -> None:
        """A step begins."""
        self.position = step << 32


class Timeline:
    """Seconds by activity."""

    def __init__(self, place: Place) -> None:
        self.total: dict[str, float] = dict.fromkeys(_KINDS, 0.0)
        """Since the start."""
        self._place = place
        self._stack = [SCRIPT]
        self.at = read_clock()
        """When an activity last began or ended."""
        self._taken = dict(self.total)

    def enter(self, kind: str, *, rest: str | None = None) -> None:
        """An activity begins; `rest`: what is no activity of its own is of that kind from here on."""
        stack, now = self._stack, read_clock()
        self.total[stack[-1]] += now - self.at
        self.at = now
        if rest is not None and len(stack) == 1:
            stack[0] = rest
        stack.append(kind)
        if kind != OBSERVER:
            self._begin(kind)

    def switch(self, kind: str) -> None:
        """The innermost one ends, and another one begins in its place."""
        stack, now = self._stack, read_clock()
        self.total[stack[-1]] += now - self.at
        self.at = now
        stack[-1] = kind
        if kind != OBSERVER:
            self._begin(kind)

    def leave(self, *, rest: str | None = None) -> None:
        """The innermost one ends."""
        stack, now = self._stack, read_clock()
        self.total[stack[-1]] += now - self.at
        self.at = now
        if len(stack) > 1:
            stack.pop()
        if rest is not None and len(stack) == 1:
            stack[0] = rest

    def charge(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the function returns; its time is the observer's own."""
        self.enter(OBSERVER)
        try:
            return function(*arguments)
        finally:
            self.leave()

    def name_the_rest(self, kind: str) -> None:
        """From here on whatever is no activity of its own is of this kind, until another is named."""
        if len(self._stack) == 1 and self._stack[0] != kind:
            self._count()
            self._stack[0] = kind

    def copy(self) -> dict[str, float]:
        """Return the seconds by activity since the start."""
        self._count()
        return dict(self.total)

    def take(self, until: dict[str, float]) -> dict[str, float]:
        """Return the seconds by activity until a copy was made, since the one of the last call."""
        taken, self._taken = self._taken, until
        return {kind: round(spent - taken[kind], 7) for kind, spent in until.items() if spent > taken[kind]}

    def look(self) -> tuple[float, tuple[float, ...]]:
        """Return the time, and the seconds of each kind of OTHERS since the start."""
        now = read_clock()
        self.total[self._stack[-1]] += now - self.at
        self.at = now
        return now, _get_others(self.total)

    def _count(self) -> None:
        now = read_clock()
        self.total[self._stack[-1]] += now - self.at
        self.at = now

    def _begin(self, kind: str) -> None:
        stack, place = self._stack, self._place
        if len(stack) == 2 and stack[0] in (NETWORK, SUBPROCESS):
            # What began between two activities is over when the next one begins.
            stack[0] = SCRIPT
        if place.position:
            place.position += 256
            place.words[_POSITION] = place.position | _SECTIONS[kind]
