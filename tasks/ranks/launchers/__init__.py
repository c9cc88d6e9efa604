"""How ranks are started: one file per launcher, found by its name in params.yaml; each offers what Launcher says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from training.registry import import_file


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The machines of a cluster that a cell's ranks are on; the stage's own has the first ones."""

    num_nodes: int
    """Machines."""
    address: str
    """Of the cluster: `local`, `auto` or HOST:PORT."""
    wait_seconds: float
    """How long to wait for machines that are not there yet."""
    silence_seconds: float
    """A machine from which nothing comes for so long is lost."""


class Launch(Protocol):
    """Ranks that were started."""

    log_folder: Path
    """What they write."""

    @property
    def is_running(self) -> bool:
        """Whether ranks run or are waited for; raises the StageError of a machine that refuses or is lost."""

    def stop(self, *, grace_seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Ask the ranks to save and end (SIGTERM); after the grace time end them. Afterwards none is left.

        Until they have ended `meanwhile` is called again and again; any exception ends them at once.
        """

    def ask_for_stacks(self) -> None:
        """Have the ranks that the stage cannot reach itself, on other machines, write their Python stacks."""

    def exit_code(self) -> int:
        """Return 0, or the exit code of the rank that caused the end (negative: the signal that ended it)."""

    def explain_end(self, *, rank: int | None = None) -> str:
        """Return the rank that caused the end (`rank`, where that is known), its exit code and last words."""

    def read_last_words(self, rank: int) -> str:
        """Return the end of what the rank wrote on its standard error."""

    def find_killed_rank(self) -> int | None:
        """Return a rank that a signal ended, and not the launcher's own."""


class Launcher(Protocol):
    """What a file of this folder offers."""

    def start(
        self,
        config: Path,
        *,
        world_size: int,
        threads_per_rank: int,
        log_folder: Path,
        arguments: Sequence[str] = (),
        module: str = "training",
        nodes: Nodes | None = None,
    ) -> Launch:
        """Start `python -m module --config config *arguments` as every rank, on this machine or on several."""


def load_launcher(name: str) -> Launcher:
    """Return the file of this folder with that name."""
    launcher: Launcher = import_file("tasks.ranks.launchers", name)
    return launcher
