"""Where a rank is, step and section, in a few bytes of memory that the stage which started it sees too.

The stage's watchdog (tasks/ranks/watchdog.py) looks there. Telling costs two stores per section and no system call.
"""

import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path


class StepSection(IntEnum):
    """What a rank is doing."""

    START = 0
    """Loading, restoring, warming up: all that is outside of steps and checkpoints."""
    DATA = 1
    """Waiting for the micro-batches of the step."""
    FORWARD = 2
    BACKWARD = 3
    """With DDP the exchange of the gradients is inside."""
    UPDATE = 4
    """From the update to whatever comes next."""
    COLLECTIVE = 5
    """An exchange with the other ranks outside of DDP: at log points, and of gradients in exact mode."""
    CHECKPOINT = 6


NUM_WORDS = 8
"""Words (int64) of each rank in the memory."""
PID, POSITION, NUM_COLLECTIVES, STEP_PATIENCE_MS, CHECKPOINT_PATIENCE_MS = range(5)
"""Which of them says what: a position is (step, place in the step, section) in 32, 24 and 8 bits."""

_SECONDS_BETWEEN_COUNTS = 1.0
_WARM_UPS = 2.5
"""A section may take as long as so many warm-ups, which are two micro-batches each."""
_CHECKPOINT_BYTES_PER_SECOND = 20e6
"""What the slowest disk takes, for the patience with checkpoints."""


def decode_position(position: int) -> tuple[int, StepSection]:
    """Return the step and the section of a position."""
    return position >> 32, StepSection(position & 0xFF)


def open_words(file: Path) -> memoryview:
    """Return the memory of all ranks, word after word, rank after rank."""
    with file.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")


class Heartbeat:
    """This rank's part of the memory; without a file nobody looks, and it is memory of this process alone."""

    def __init__(self, file: Path | None = None, *, rank: int = 0) -> None:
        self._words = memoryview(bytearray(NUM_WORDS * 8)).cast("q")
        if file is not None:
            self._words = open_words(file)[rank * NUM_WORDS : (rank + 1) * NUM_WORDS]
        self._words[PID] = os.getpid()
        self._is_watched = file is not None
        self._is_in_steps = False
        self._place = 0
        self.on_enter: Callable[[StepSection], None] = lambda _: None
        """Told of every section of a step as well."""

    @property
    def step(self) -> int:
        """The step, counted over the run; 0 before the first."""
        return self._place >> 32

    def begin(self, step: int) -> None:
        """A step begins, with waiting for its data."""
        self._is_in_steps = True
        self._place = step << 32
        self._words[POSITION] = self._place | StepSection.DATA

    def enter(self, section: StepSection) -> None:
        """The rank goes over to another section of the step."""
        if self._is_in_steps:
            self._place += 256
            self._words[POSITION] = self._place | section
            self.on_enter(section)

    def rest(self) -> None:
        """No step runs from here on: what follows is START until one begins."""
        self._is_in_steps = False
        self._place += 256
        self._words[POSITION] = self._place | StepSection.START

    def set_patience(self, *, warm_up_seconds: float, checkpoint_bytes: int) -> None:
        """Tell the watchdog what takes this rank long without being a hang."""
        self._words[STEP_PATIENCE_MS] = int(_WARM_UPS * warm_up_seconds * 1000)
        self._words[CHECKPOINT_PATIENCE_MS] = int(checkpoint_bytes / _CHECKPOINT_BYTES_PER_SECOND * 1000)

    @contextlib.contextmanager
    def keep_count(self, num_collectives: Callable[[], int]) -> Iterator[None]:
        """Keep the number of collectives that this rank has begun up to date, once a second, if anybody looks.

        Of ranks at the same place it tells those that have joined a collective from the one that has not.
        """
        if not self._is_watched:
            yield
            return

        def count() -> None:
            self._words[NUM_COLLECTIVES] = num_collectives()

        # Joined: the groups that are asked may be gone soon.
        with call_every(_SECONDS_BETWEEN_COUNTS, count, name="count-collectives"):
            yield


@contextlib.contextmanager
def call_every(seconds: float, call: Callable[[], object], *, name: str) -> Iterator[None]:
    """Call it in a thread of its own, again and again until the block ends and no call is under way."""
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.wait(seconds):
            call()

    thread = threading.Thread(target=go_on, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
