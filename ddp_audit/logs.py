"""What torchrun and its ranks wrote, how they ended by it, and that it fills no disk."""

import os
import re
import threading
from pathlib import Path

_ENDING = re.compile(r"^\s*rank\s*:\s*\d+ \(local_rank: (\d+)\).*?^\s*exitcode\s*:\s*(-?\d+)", re.DOTALL | re.MULTILINE)
_SIGTERM = -15
_LINES_SHOWN = 20
_MOST_BYTES, _HEAD_SHARE = 16_000_000, 8
"""Of all logs of one launch together, about."""
_SECONDS_BETWEEN_LOOKS = 0.5


def find_cause(log: Path) -> tuple[int, int] | None:
    """Return the rank that torchrun's log says to have caused the end, and its exit code; None where it names none.

    A rank that a signal ended is the cause, unless the signal is torchrun's own: others then fail because of it.
    """
    text = log.read_text(errors="replace") if log.exists() else ""
    endings = {int(match[1]): int(match[2]) for match in _ENDING.finditer(text)}
    killed = next(((rank, code) for rank, code in endings.items() if code < 0 and code != _SIGTERM), None)
    cause = _ENDING.search(text.partition("Root Cause")[2])
    return killed or ((int(cause[1]), int(cause[2])) if cause else None)


def read_last_words(folder: Path, rank: int | None) -> str:
    """Return the end of what a rank wrote on its standard error, or of the launch's own log."""
    logs = sorted(folder.glob("*.log" if rank is None else f"*/attempt_*/{rank}/stderr.log"))
    return "\n".join(logs[-1].read_text(errors="replace").strip().splitlines()[-_LINES_SHOWN:]) if logs else ""


class LogCap:
    """Keeps the logs below a folder short until it is closed.

    Whoever writes them has them open for appending (O_APPEND); else what is written next would leave a hole before it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look a last time."""
        self._is_over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN_LOOKS):
            self._look()

    def _look(self) -> None:
        logs = list(self._folder.rglob("*.log"))
        for log in logs:
            _cut_middle(log, _MOST_BYTES // len(logs))


def _cut_middle(log: Path, most: int) -> None:
    """Leave the first eighth and the last quarter of `most` bytes of a longer log, and say how much went."""
    try:
        size = log.stat().st_size
        if size <= most:
            return
        with log.open("rb") as file:
            head = file.read(most // _HEAD_SHARE)
            file.seek(-(most // 4), os.SEEK_END)
            tail = file.read(most // 4)
        # Lines that come meanwhile stand before the marker or after the tail, never before the head.
        os.truncate(log, len(head))
        with log.open("ab") as file:
            file.write(f"\n... {size - len(head) - len(tail):,} bytes were cut out here ...\n".encode() + tail)
    except FileNotFoundError:
        return
