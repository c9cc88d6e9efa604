"""Ranks under a real torchrun, to be struck at."""

import subprocess
from typing import Any

import psutil

from tests.training.conftest import start_ranks


class Torchrun:
    """One torchrun at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, config: dict[str, Any], *, ends_others: bool) -> list[int]:
        """Start torchrun, which ends the other ranks anyway; return its process id."""
        assert ends_others
        self._process = start_ranks(config)
        return [self._process.pid]

    def wait(self) -> list[int]:
        """Return its exit code."""
        assert self._process is not None
        return [self._process.wait()]


def ranks_below(torchrun: int) -> list[int]:
    """Return the process ids of the ranks that run now."""
    try:
        below = psutil.Process(torchrun).children(recursive=True)
        return [process.pid for process in below if "--config" in process.cmdline()]
    except psutil.NoSuchProcess:
        return []
