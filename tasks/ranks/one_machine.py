"""The ranks of one machine under torchrun: each in its own process, all ended with this one."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ddp_audit.process.torchrun import NO_SHARED_STORE, LogCap, RankLogs, list_torchrun_words
from training.config import STORE
from training.process.lifeline import set_parent_death_signal


@dataclass(frozen=True)
class FileRendezvous:
    """Where the ranks of this machine meet: in files, which nobody but their owner can read or write."""

    folder: Path
    """For this launch alone."""

    def make(self) -> None:
        """Make the folder; nobody but us may look into it."""
        self.folder.mkdir(mode=0o700)

    def environment(self) -> dict[str, str]:
        """Return what torchrun and the ranks are told beside."""
        return {STORE: str(self.folder / "ranks"), **NO_SHARED_STORE}


class RanksHere:
    """The ranks of this machine under torchrun.

    torchrun leads a session of its own; it is ended by signal to that whole session, and the kernel ends it when this
    process dies. Every rank, in turn, ends itself when torchrun dies.
    """

    def __init__(
        self,
        config: Path,
        *,
        world_size: int,
        threads_per_rank: int,
        log_folder: Path,
        arguments: Sequence[str] = (),
        module: str = "training",
    ) -> None:
        """Start `python -m module --config config *arguments` as every rank."""
        log_folder.mkdir(parents=True, exist_ok=True)
        self.log_folder = log_folder
        self._logs = RankLogs(log_folder)
        self._rendezvous = FileRendezvous(log_folder.resolve() / "rendezvous")
        self._rendezvous.make()
        words = list_torchrun_words(self._rendezvous.folder, world_size=world_size, logs=log_folder)
        command = [sys.executable, *words, "-m", module, "--config", str(config), *arguments]
        with self._logs.file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": str(threads_per_rank),
                    **self._rendezvous.environment(),
                },
                preexec_fn=partial(set_parent_death_signal, signal.SIGTERM, parent=os.getpid()),
            )
        self._log_cap = LogCap(log_folder)

    @property
    def is_running(self) -> bool:
        """Whether torchrun still runs."""
        return self._process.poll() is None

    def stop(self, *, grace_seconds: float) -> None:
        """Ask the ranks to save and end (SIGTERM); after the grace time, or on any exception, end them (SIGKILL)."""
        try:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + grace_seconds
            while self.is_running and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            # Also when torchrun has ended by itself: none of its session may stay.
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._log_cap.close()
            shutil.rmtree(self._rendezvous.folder, ignore_errors=True)

    def ask_for_stacks(self) -> None:
        """Do nothing: the stage asks ranks of its own machine itself."""

    def exit_code(self) -> int:
        """Return 0, or the exit code of the rank that caused the end (negative: the signal that ended it)."""
        code = self._process.wait()
        cause = self._logs.find_root_cause()
        return code if code == 0 or cause is None else cause[1]

    def explain_end(self, *, rank: int | None = None) -> str:
        """Return who caused the end, as RankLogs does."""
        return self._logs.explain_end(rank=rank)

    def read_last_words(self, rank: int) -> str:
        """Return the end of what the rank wrote on its standard error."""
        return self._logs.read_last_words(rank)

    def find_killed_rank(self) -> int | None:
        """Return a rank that a signal ended, as RankLogs does."""
        return self._logs.find_killed_rank()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
