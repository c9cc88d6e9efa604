"""What rank and parent tell each other: events, one JSON object per line, and a signal to stop after a whole step."""

import json
import logging
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from training.process.failure import EXIT_INTERRUPTED, EXIT_PREEMPTED

_log = logging.getLogger(__name__)


class EventStream:
    """A JSON-lines file that starts empty with every launch; says nothing on other ranks than the first."""

    def __init__(self, path: Path, *, rank: int) -> None:
        self._file = None
        if rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")

    def send(self, event: str, **fields: Any) -> bool:
        """Append one event, flushed; return whether it was. A full disk is said once and ends the stream alone."""
        if self._file is None:
            return False
        try:
            self._file.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            _log.warning("the event stream ends here: %s", error)
            self._file = None
        return self._file is not None


class StopRequest:
    """Whether this rank was asked to stop, as the exit code that answers it: 0 (no), 75 (SIGTERM), 130 (SIGINT).

    Until `listen` there is nothing to save, and either signal kills the process at once, even inside a native call
    that waits for another rank, where no Python handler would run. After it, a second SIGINT ends the process at
    once. The last checkpoint is whole in any case.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def listen(self) -> None:
        """Note signals from now on, for the loop to answer after a whole step."""
        signal.signal(signal.SIGTERM, self._handle_signal)
        signal.signal(signal.SIGINT, self._handle_signal)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_PREEMPTED
        if self.exit_code == code == EXIT_INTERRUPTED:
            os._exit(code)
        self.exit_code = max(self.exit_code, code)
