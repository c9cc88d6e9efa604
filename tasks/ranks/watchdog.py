"""Finding ranks that hang: who is farthest behind, and for how long nothing has come from there."""

import contextlib
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
    open_words,
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
    text: str
    """Where they are, and the other ranks."""

    def __str__(self) -> str:
        return self.text


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
        os.write(handle, bytes(world_size * NUM_WORDS * 8))
        os.close(handle)
        self._words = open_words(self.file)
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

    @property
    def seconds_to_save(self) -> float:
        """How long a checkpoint may take, by what the ranks say of its size; 0 before there is anything to save."""
        return max(self._words[rank * NUM_WORDS + CHECKPOINT_PATIENCE_MS] for rank in range(self._world_size)) / 1000

    def is_stuck(self, seconds: float) -> bool:
        """Return whether ranks that are to save and end do neither: for so long none moved on, or writes.

        To be called as often as `look`, whose place it takes then.
        """
        self.look()
        _, section = decode_position(self._hindmost[0])
        return self._still_seconds >= seconds and section is not StepSection.CHECKPOINT

    def read_words(self, rank: int) -> list[int]:
        """Return what a rank of this node says, for the watchdog of another: its pid means nothing there."""
        words = list(self._words[rank * NUM_WORDS : (rank + 1) * NUM_WORDS])
        if words[PID]:
            words[PID] = STOPPED_ELSEWHERE if _is_stopped(words[PID]) else ELSEWHERE
        return words

    def ask_for_stacks(self) -> None:
        """Have every rank that can write its Python stacks to its log."""
        self._signal(signal.SIGUSR1)
        time.sleep(_SECONDS_FOR_STACKS)

    def end_ranks(self) -> None:
        """Kill every rank that ever said where it is and still runs."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            born = self._born.get(pid)
            # Its number may be another's by now.
            is_rank = born is not None and _find_start_time(pid) == born
            if is_rank and (number == signal.SIGKILL or not _is_stopped(pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

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
        decoded = [decode_position(position) for position, _ in places]
        where = [f"in section {section.name.lower()} of step {step}" for step, section in decoded]
        who = f"rank {ranks[0]} hangs" if len(ranks) == 1 else f"ranks {_join_ranks(ranks)} hang"
        said = [f"{who} {where[ranks[0]]}: nothing for {self._still_seconds:.0f} s"]
        if stopped:
            said.append(f"rank {_join_ranks(stopped)} was stopped by a signal, so that its stack cannot be had")
        if 1 < len(ranks) == len(places):
            said.append("all are at the same place, so that none can be told from the others")
        said += [f"rank {rank} is {there}" for rank, there in enumerate(where) if rank not in ranks]
        return Hang(ranks, stopped, "; ".join(said))


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
