"""Finding ranks that hang: who is farthest behind, and for how long nothing has come from there."""

import contextlib
import mmap
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from training.process.heartbeat import (
    CHECKPOINT_PATIENCE_MS,
    NUM_COLLECTIVES,
    NUM_WORDS,
    PID,
    POSITION,
    STEP_PATIENCE_MS,
    StepSection,
    decode_position,
)

_START_SECONDS = 900.0
"""A launch may stand still for so long outside of steps: imports, a model from a cold disk, segments to be hashed."""
_LONGEST_LOOK = 1.0
"""Seconds between two looks that count: if this process was put aside itself, that says nothing about the ranks."""
_SECONDS_FOR_STACKS = 1.0
ELSEWHERE, STOPPED_ELSEWHERE = -1, -2
"""In the place of the pid: a rank of another node, and one that a signal has stopped there."""
# Memory, where the machine has a folder of it: a page of a file on a disk may block whoever writes to it.
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Hang:
    """Ranks from which nothing comes any more."""

    ranks: list[int]
    """Those farthest behind; all of them where none can be told from the others."""
    stopped: list[int]
    """Those of them that a signal has stopped: they cannot say what they do."""
    step: int
    """The step in which they are; before the first step, 0."""
    section: StepSection
    """The section of the step."""
    seconds: float
    """For how long nothing has come from them."""
    others: list[str]
    """Where the other ranks are."""

    def __str__(self) -> str:
        who = f"rank {self.ranks[0]} hangs" if len(self.ranks) == 1 else f"ranks {_join_ranks(self.ranks)} hang"
        said = f"{who} in section {self.section.name.lower()} of step {self.step}: nothing for {self.seconds:.0f} s"
        if self.stopped:
            said += f"; rank {_join_ranks(self.stopped)} was stopped by a signal, so that its stack cannot be had"
        if len(self.ranks) > 1 and not self.others:
            said += "; all are at the same place, so that none can be told from the others"
        return "; ".join([said, *self.others])


class Watchdog:
    """Looks at the memory in which the ranks say where they are; a context that owns it."""

    def __init__(
        self, *, world_size: int, step_seconds: float, ranks_heard: int | None = None, more_start_seconds: float = 0.0
    ) -> None:
        """`ranks_heard`: how many of the ranks will say where they are; all of them unless told otherwise.

        `more_start_seconds`: how long other machines may take to come, before any rank starts.
        """
        self._world_size = world_size
        self._ranks_heard = world_size if ranks_heard is None else ranks_heard
        self._step_seconds = step_seconds
        self._start_seconds = _START_SECONDS + more_start_seconds
        handle, name = tempfile.mkstemp(prefix="ddp-heartbeat-", dir=_MEMORY if _MEMORY.is_dir() else None)
        self.file = Path(name)
        """What every rank is told on its command line."""
        with os.fdopen(handle, "r+b", buffering=0) as opened:
            opened.write(bytes(world_size * NUM_WORDS * 8))
            self._words = memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")
        self._born: dict[int, float | None] = {}
        self._hindmost = (-1, -1)
        self._still_seconds = 0.0
        self._looked_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.unlink(missing_ok=True)

    def look(self) -> Hang | None:
        """Return what hangs, if anything does. To be called often: time counts from look to look.

        Ranks may wait for another for as long as that one moves on, so only the one farthest behind counts.
        """
        now = time.monotonic()
        self._still_seconds += min(now - self._looked_at, _LONGEST_LOOK)
        self._looked_at = now
        places = [self._read_place(rank) for rank in range(self._world_size)]
        hindmost = min(places)
        if hindmost != self._hindmost:
            self._hindmost, self._still_seconds = hindmost, 0.0
        for pid in self._pids:
            if pid > 0 and pid not in self._born:
                self._born[pid] = _find_start_time(pid)
        if sum(map(bool, self._pids)) == self._ranks_heard:
            # Every rank has it open. A stage that is killed leaves none behind.
            self.file.unlink(missing_ok=True)
        if self._still_seconds < self._compute_patience(places.index(hindmost)):
            return None
        return self._make_hang(places)

    def read_words(self, rank: int) -> list[int]:
        """Return what a rank of this node says, for the watchdog of another: its pid means nothing there."""
        words = list(self._words[rank * NUM_WORDS : (rank + 1) * NUM_WORDS])
        if words[PID]:
            words[PID] = STOPPED_ELSEWHERE if _is_stopped(words[PID]) else ELSEWHERE
        return words

    def ask_for_stacks(self) -> None:
        """Have every rank that can write its Python stacks to its log."""
        for pid in self._pids:
            if self._is_rank(pid) and not _is_stopped(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
        time.sleep(_SECONDS_FOR_STACKS)

    def end_ranks(self) -> None:
        """Kill every rank that ever said where it is and still runs."""
        for pid in self._pids:
            if self._is_rank(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _is_rank(self, pid: int) -> bool:
        """Return whether the process still is the rank that said so: its number may be another's by now."""
        born = self._born.get(pid)
        return born is not None and _find_start_time(pid) == born

    @property
    def _pids(self) -> list[int]:
        return [self._words[rank * NUM_WORDS + PID] for rank in range(self._world_size)]

    def _read_place(self, rank: int) -> tuple[int, int]:
        """Return what is the larger the farther the rank has come."""
        return self._words[rank * NUM_WORDS + POSITION], self._words[rank * NUM_WORDS + NUM_COLLECTIVES]

    def _compute_patience(self, rank: int) -> float:
        """Return how many seconds this rank may take where it is."""
        words = self._words[rank * NUM_WORDS : (rank + 1) * NUM_WORDS]
        _, section = decode_position(words[POSITION])
        if section is StepSection.START:
            return max(self._step_seconds, self._start_seconds)
        if section is StepSection.CHECKPOINT:
            return self._step_seconds + words[CHECKPOINT_PATIENCE_MS] / 1000
        return max(self._step_seconds, words[STEP_PATIENCE_MS] / 1000)

    def _make_hang(self, places: list[tuple[int, int]]) -> Hang:
        stopped = [rank for rank, pid in enumerate(self._pids) if pid and _is_stopped(pid)]
        # A rank that is stopped goes nowhere, whoever else is at the same place.
        ranks = stopped or [rank for rank, place in enumerate(places) if place == min(places)]
        step, section = decode_position(places[ranks[0]][0])
        others = []
        for rank, (position, _) in enumerate(places):
            if rank not in ranks:
                their_step, their_section = decode_position(position)
                others.append(f"rank {rank} is in section {their_section.name.lower()} of step {their_step}")
        return Hang(ranks, stopped, step, section, self._still_seconds, others)


def _is_stopped(pid: int) -> bool:
    if pid < 0:
        return pid == STOPPED_ELSEWHERE
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _find_start_time(pid: int) -> float | None:
    """Return when the process was started; None if it is no more."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _join_ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
