"""Logging of a stage: short lines on stderr for a person, nothing chatty from libraries."""

import logging
import os
import sys
from typing import TextIO

SILENT = "DDP_COMPARE_SILENT"
"""Environment variable: nobody is shown what the process writes."""
_QUIET = ("httpx", "httpx2", "httpcore", "httpcore2", "urllib3", "filelock", "fsspec", "matplotlib", "alembic", "git")


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is now: while a progress bar is shown, that puts the line above the bar."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        pass


def configure_logging() -> None:
    """Log INFO and above as `HH:MM:SS message` on stderr; also switch off what would call home."""
    switch_off_telemetry()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", handlers=[_CurrentStderr()]
    )
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def switch_off_telemetry() -> None:
    """Tell every library of the stack, by environment, to send no usage data; children inherit it."""
    os.environ.update(
        {
            "DO_NOT_TRACK": "1",
            "DVC_NO_ANALYTICS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_XET_TELEMETRY_ENABLED": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
    )
