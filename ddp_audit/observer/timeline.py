"""Where the time of the main thread goes: every moment counts once, for the innermost activity that is under way."""

import mmap
import os
from collections.abc import Callable
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


_MOST_LOGGED = 1 << 12


class Timeline:
    """Seconds by activity.

    What begins and ends is only logged, and counted later, all of it together: between the kernels of a step a line of
    Python costs ten times what it costs in a loop.
    """

    def __init__(self, place: Place) -> None:
        self.total: dict[str, float] = dict.fromkeys(_KINDS, 0.0)
        """Since the start, as far as it was counted."""
        self._place = place
        self._stack = [SCRIPT]
        self._at = read_clock()
        self._log: list[tuple[float, bool, Any, str | None]] = []
        """When; whether the innermost activity ends; the one that begins, or a mark; what the rest is from then on."""
        self._taken = dict(self.total)

    def enter(self, kind: str, rest: str | None = None, is_end: bool = False) -> None:
        """An activity begins, in place of the innermost one if that ends.

        `rest`: what is no activity of its own is of that kind from here on.
        """
        self._log.append((read_clock(), is_end, kind, rest))
        place = self._place
        if place.position and kind is not OBSERVER:
            place.position += 256
            place.words[_POSITION] = place.position | _SECTIONS[kind]

    def switch(self, kind: str) -> None:
        """The innermost one ends, and another one begins in its place."""
        self.enter(kind, None, True)

    def leave(self, rest: str | None = None) -> None:
        """The innermost one ends."""
        log = self._log
        log.append((read_clock(), True, None, rest))
        if len(log) > _MOST_LOGGED:
            self.count()

    def charge(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the function returns; its time is the observer's own."""
        self.enter(OBSERVER)
        try:
            return function(*arguments)
        finally:
            self.leave()

    def name_the_rest(self, kind: str) -> None:
        """From here on whatever is no activity of its own is of this kind, until another is named."""
        self._log.append((read_clock(), False, None, kind))

    def mark(self) -> list[Any]:
        """Return a list of the time; once all is counted it has the seconds by activity until then, too."""
        now = read_clock()
        mark: list[Any] = [now]
        self._log.append((now, False, mark, None))
        return mark

    def copy(self) -> dict[str, float]:
        """Return the seconds by activity since the start."""
        mark = self.mark()
        self.count()
        seconds: dict[str, float] = mark[1]
        return seconds

    def take(self, until: dict[str, float]) -> dict[str, float]:
        """Return the seconds by activity until a copy was made, since the one of the last call."""
        taken, self._taken = self._taken, until
        return {kind: round(spent - taken[kind], 7) for kind, spent in until.items() if spent > taken[kind]}

    def count(self) -> None:
        """Count what was logged."""
        log, self._log = self._log, []
        total, stack, at = self.total, self._stack, self._at
        for now, is_end, kind, rest in log:
            total[stack[-1]] += now - at
            at = now
            if type(kind) is list:
                kind.append(dict(total))
                continue
            if is_end and len(stack) > 1:
                stack.pop()
            if len(stack) == 1:
                # What began between two activities is over when the next one begins.
                is_over = stack[0] in (NETWORK, SUBPROCESS) and kind in _SECTIONS
                stack[0] = rest or (SCRIPT if is_over else stack[0])
            if kind is not None:
                stack.append(kind)
        self._at = at
