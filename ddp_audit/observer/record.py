"""The record of one rank: a file of JSON lines that is only ever appended to, so that any end of the rank leaves it."""

import fcntl
import json
import os
import resource
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

read_clock = time.perf_counter
"""The clock itself: scripts are given another one (clocks.py)."""

MAIN = threading.main_thread().ident
"""The thread that torchrun's rank began in; others are left alone."""


def is_main_thread() -> bool:
    """Return whether this is that thread."""
    return threading.get_ident() == MAIN


class Line(NamedTuple):
    """Where in the script something was asked for."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
_write, _getpid = os.write, os.getpid
_HIGHEST = 1 << 10


class Record:
    """The file of this rank. What a forked child of it would write is dropped."""

    def __init__(self, folder: str, *, rank: int | None) -> None:
        """Make the file; FileExistsError if a process of this rank has one already. The rank may be known later."""
        self._rank = rank
        self._path = path = Path(folder).absolute() / (f"process-{_getpid()}" if rank is None else f"rank-{rank}.jsonl")
        self._pid = _getpid()
        # Every line has it, so that what the script itself writes into the file is no line of ours.
        self._begin = f'{{"mark":"{secrets.token_hex(8)}",'
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # A script that closes all files it sees opens its own under low numbers, and would find our lines in them.
        highest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] % (1 << 63), _HIGHEST)
        self._file = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, max(highest - 8, 0))
        os.close(file)
        self.is_open = True

    def claim(self, rank: int) -> int:
        """Return the rank that this is the record of: the one that was known, or else this one."""
        if self._rank is None:
            # Of two processes that take themselves for the same rank the first one is.
            os.link(self._path, self._path.with_name(f"rank-{rank}.jsonl"))
            self._path.unlink()
            self._rank = rank
        return self._rank

    def write(self, kind: str, **fields: Any) -> None:
        """Append a line at once: a rank may be killed, or leave by os._exit."""
        self.write_all(kind, [fields])

    def write_all(self, kind: str, every: list[dict[str, Any]]) -> None:
        """Append a line for each."""
        if not self.is_open or _getpid() != self._pid:
            return
        lines = "".join([f"{self._begin}{_encode({'kind': kind, **fields})[1:]}\n" for fields in every])
        try:
            _write(self._file, lines.encode("utf-8", "replace"))
        except OSError:
            # The disk is full, or the script has closed every file: it goes on all the same.
            self.is_open = False


class Guard:
    """Runs what the observer does, so that no fault of it reaches the script."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.is_on = True

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return what the function returns; None once something has failed."""
        return self.wrap(function)(*arguments, **named)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as it is run here: what every step calls is made once."""

        def guarded(*arguments: Any, **named: Any) -> Any:
            if not self.is_on:
                return None
            try:
                return function(*arguments, **named)
            except Exception as error:
                self.is_on = False
                trace = error.__traceback__
                while trace is not None and trace.tb_next is not None:
                    trace = trace.tb_next
                self._record.write(
                    "broken",
                    error=f"{type(error).__name__}: {error}"[:500],
                    at="" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}",
                )
                return None

        return guarded
