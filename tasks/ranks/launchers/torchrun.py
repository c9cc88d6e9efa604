"""Ranks started by torchrun, on this machine."""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddp_audit.process.torchrun import NO_SHARED_STORE, Launch, list_torchrun_words
from tasks.ranks import launchers
from tasks.ranks.launchers import Nodes
from training.config import STORE


class LocalRanks(Launch):
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
        self._rendezvous = log_folder.resolve() / "rendezvous"
        words = list_torchrun_words(self._rendezvous, world_size=world_size, logs=log_folder)
        rendezvous = make_rendezvous(self._rendezvous)
        super().__init__(
            [sys.executable, *words, "-m", module, "--config", str(config), *arguments],
            log_folder=log_folder, environment={**os.environ, "OMP_NUM_THREADS": str(threads_per_rank), **rendezvous},
        )  # fmt: skip

    def stop(self, *, grace_seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Ask the ranks to save and end (SIGTERM); after the grace time, or on any exception, end them (SIGKILL)."""
        try:
            # torchrun is not asked: it kills ranks that it has asked itself half a minute later.
            if not self._ask_ranks():
                self._signal(signal.SIGTERM)
            deadline = time.monotonic() + grace_seconds
            while self.is_running and time.monotonic() < deadline:
                meanwhile()
                time.sleep(0.05)
        finally:
            # Also when torchrun has ended by itself: none of its session may stay.
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._log_cap.close()
            shutil.rmtree(self._rendezvous, ignore_errors=True)

    def ask_for_stacks(self) -> None:
        """Do nothing: the stage asks ranks of its own machine itself."""

    def _ask_ranks(self) -> bool:
        """Send SIGTERM to the ranks, which are torchrun's children; return whether there are any."""
        ranks = list[int]()
        for file in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                ranks += map(int, file.read_text().split())
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGTERM)
        return bool(ranks)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def start(config: Path, *, nodes: Nodes | None = None, **options: Any) -> launchers.Launch:
    """Start the ranks: what every launcher offers, with the options of Launcher; it knows this machine alone."""
    assert nodes is None, "ranks on this machine only"
    return LocalRanks(config, **options)


def make_rendezvous(folder: Path) -> dict[str, str]:
    """Make the folder of a launch in whose files the ranks meet; return what torchrun and they are told of it.

    Nobody but their owner may look into it.
    """
    folder.mkdir(mode=0o700, parents=True)
    return {STORE: str(folder / "ranks"), **NO_SHARED_STORE}
