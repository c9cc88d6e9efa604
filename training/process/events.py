"""The event stream: what rank 0 says of the running launch, one JSON object per line, for the parent to follow."""

import json
import logging
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


class EventStream:
    """A JSON-lines file that starts empty with every launch; says nothing on other ranks than the first."""

    def __init__(self, path: Path, *, rank: int) -> None:
        self._file = None
        if rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")

    def send(self, event: str, **fields: Any) -> None:
        """Append one event, flushed. A full disk is said once and ends the stream, never the training."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            _log.warning("the event stream ends here: %s", error)
            self._file = None
