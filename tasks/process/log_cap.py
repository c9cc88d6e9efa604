"""Logs that cannot fill a disk: while ranks run, the middle of a log that grows too long is cut out."""

import os
import threading
from pathlib import Path

MAX_BYTES = 16_000_000
"""Of all logs of one launch together, about: a rank may write more between two looks."""
_SECONDS_BETWEEN_LOOKS = 0.5
_HEAD_SHARE = 8


class LogCap:
    """Keeps the logs below a folder short until it is closed.

    Whoever writes them has them open for appending (O_APPEND); else what is written next would leave a hole before it.
    """

    def __init__(self, folder: Path, *, max_bytes: int | None = None) -> None:
        self._folder = folder
        self._max_bytes = MAX_BYTES if max_bytes is None else max_bytes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="log cap", daemon=True)
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
            cut_middle(log, max_bytes=self._max_bytes // len(logs))


def cut_middle(log: Path, *, max_bytes: int) -> None:
    """Leave the first eighth and the last quarter of `max_bytes` of a longer log, and say how much went."""
    try:
        size = log.stat().st_size
        if size <= max_bytes:
            return
        with log.open("rb") as file:
            head = file.read(max_bytes // _HEAD_SHARE)
            file.seek(-(max_bytes // 4), os.SEEK_END)
            tail = file.read(max_bytes // 4)
        said = f"\n... {size - len(head) - len(tail):,} bytes of this log were cut out here ...\n"
        # Lines that come meanwhile stand before the marker or after the tail, never before the head.
        os.truncate(log, len(head))
        with log.open("ab") as file:
            file.write(said.encode() + tail)
    except FileNotFoundError:
        return
