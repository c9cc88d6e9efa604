"""Where trials of a search run: on this machine, or in turn on every machine of a Ray cluster.

Machines of a cluster see the folder of the comparison under the same path, so that nothing has to be carried.
"""

import fcntl
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.machine.facts import collect_machine_facts
from tasks.process.failure import ConfigurationError
from tasks.ranks.cluster.connection import connect, list_nodes
from tasks.ranks.cluster.machine import Machine

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_SAVE = 60.0
"""That a stage of a search that was killed may take to save."""
_SILENCE_SECONDS = 30.0
_SEEN = Path(".work/search/seen")
"""What a machine has to see of this one's folder."""


class Stage:
    """The stage of a trial, one at a time: on this machine, or in an actor, to which Ray sends this class as it is."""

    def __init__(self, _silence_seconds: float = 0.0) -> None:
        self._process: Any = None

    def prepare(self, project: str, file: str, text: str) -> dict[str, Any] | None:
        """Return what this machine is; None if a file of the project has not that text here."""
        seen = Path(project) / file
        if not seen.is_file() or seen.read_text() != text:
            return None
        os.chdir(project)
        sys.path.insert(0, project)
        from tasks.machine.facts import collect_node_facts

        is_open = os.environ.get("RAY_AUTH_MODE") != "token"
        return {"is_open": is_open, "facts": collect_node_facts(node_rank=0, address="")}

    def start(self, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        """Start it in the folder of its trial; raises ResourceError if one is there already that does not end."""
        from tasks.process.failure import ResourceError
        from tasks.process.parent import STARTER

        deadline = time.monotonic() + _SECONDS_TO_SAVE
        with (folder / "lock").open("a") as lock, (folder / "trial.log").open("ab") as log:
            while True:
                try:
                    # Whoever inherits the file holds the lock until its end, on whatever machine.
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ResourceError(f"{folder}: another search trains there; run again later") from None
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                pass_fds=[lock.fileno()], env={**environment, STARTER: str(os.getpid())},
            )  # fmt: skip

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        code: int | None = self._process.poll()
        return code

    def end(self) -> None:
        """Have it save and end."""
        from flows.child import end_group

        end_group(self._process)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one stage at a time runs."""

    name: str
    """Of its machine."""
    turn: int
    """Its number there."""
    ask: Callable[..., Any]
    """Given the name of a method of Stage and what that takes; returns what it does."""


def open_places(address: str, *, at_once: int) -> list[Place]:
    """Return as many places: on this machine if the address is `local`, else in turn on those of the cluster.

    Raises ConfigurationError for a machine that sees another folder, or has other versions or no token.
    """
    if address == "local":
        stages = [Stage() for _ in range(at_once)]
        return [
            Place(name="this machine", turn=turn, ask=lambda what, *told, stage=stage: getattr(stage, what)(*told))
            for turn, stage in enumerate(stages)
        ]
    connect(address)
    nodes, text = list_nodes(), secrets.token_hex()
    _SEEN.parent.mkdir(parents=True, exist_ok=True)
    _SEEN.write_text(text)
    places = []
    for slot in range(at_once):
        turn, number = divmod(slot, len(nodes))
        machine = Machine(
            nodes[number], Stage, who="search", number=number, silence_seconds=_SILENCE_SECONDS, stop=threading.Event()
        )
        said = machine.ask("prepare", os.getcwd(), str(_SEEN), text)
        if said is None:
            raise ConfigurationError(
                f"search: {machine.name} does not see the folder {os.getcwd()} of this machine; allowed: one that all "
                "machines of the cluster share, or ray.address: local"
            )
        machine.require_fit(said, like=collect_machine_facts().versions)
        places.append(Place(name=machine.name, turn=turn, ask=machine.ask))
    return places
