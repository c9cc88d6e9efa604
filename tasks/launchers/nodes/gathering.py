"""How the nodes of a launch come together: some wait already, others are started by a command or by hand."""

import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tasks.launchers import Nodes
from tasks.launchers.nodes.line import KEY, Line, key_of_head
from tasks.launchers.nodes.lobby import Lobby
from tasks.stage.failure import ConfigurationError, ResourceError

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BEFORE_ASKING = 2.0
"""Nodes that wait already come at once."""
_SECONDS_TO_END = 5.0

Waiting = tuple[Line, dict[str, Any]]
"""A node's line, and what it said of itself."""


class Gathering:
    """The nodes beside the head that one launch needs."""

    def __init__(self, nodes: Nodes, *, cell: str, log_folder: Path) -> None:
        self._nodes = nodes
        self._cell = cell
        self._log_folder = log_folder
        self._started: list[tuple[Path, subprocess.Popen[bytes]]] = []

    def lines(self, lobby: Lobby, *, is_over: Callable[[], bool]) -> list[Waiting]:
        """Return the lines of all nodes but the head, by their numbers; fewer if it is over before.

        Raises ResourceError if they do not come in time, ConfigurationError if they cannot be started.
        """
        found: list[Waiting] = []
        has_asked, began_at = False, time.monotonic()
        while len(found) < self._nodes.num_nodes - 1 and not is_over():
            taken = lobby.take(but_not=[said["node"] for _, said in found])
            if taken is not None:
                found.append(taken)
                continue
            missing, waited = self._nodes.num_nodes - 1 - len(found), time.monotonic() - began_at
            if not has_asked and (waited > _SECONDS_BEFORE_ASKING or self._nodes.start_command is not None):
                has_asked = True
                self._ask_for(missing)
            if waited > self._nodes.wait_seconds:
                raise ResourceError(
                    f"cell {self._cell}: {missing} of {self._nodes.num_nodes} nodes did not come to "
                    f"{self._nodes.rendezvous} in {waited:.0f} s; on each of them: {join_command(self._nodes)}"
                )
            self._look_at_started()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return list(_in_order(found))

    def close(self) -> None:
        """End what was started; a node has ended by itself, unless it never came."""
        for _, process in self._started:
            try:
                process.wait(timeout=_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _ask_for(self, missing: int) -> None:
        if self._nodes.start_command is None:
            _log.warning(
                "%s waits for %d more nodes; on each, in a copy of this project: %s",
                self._cell, missing, join_command(self._nodes),
            )  # fmt: skip
            return
        for node_rank in range(1, self._nodes.num_nodes):
            command = f"cd {shlex.quote(str(Path.cwd()))} && exec {join_command(self._nodes, node_rank=node_rank)}"
            words = shlex.split(self._nodes.start_command)
            words = [word.replace("{node_rank}", str(node_rank)).replace("{command}", command) for word in words]
            file = self._log_folder / f"start-{node_rank}.log"
            with file.open("wb") as log:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            self._started.append((file, process))

    def _look_at_started(self) -> None:
        for file, process in self._started:
            if process.poll():
                said = " ".join(file.read_text(errors="replace").strip().splitlines()[-1:])
                raise ConfigurationError(
                    f"nodes.start_command ended with exit code {process.returncode}: {said or 'it said nothing'}; "
                    f"its log: {file}"
                )


def join_command(nodes: Nodes, *, node_rank: int | None = None) -> str:
    """Return the command that makes another machine a node; with a number, for one launch and as that node."""
    words = ["python" if node_rank is None else sys.executable, "-m", "tasks.launchers.nodes.join", nodes.rendezvous]
    if node_rank is not None:
        words += ["--node-rank", str(node_rank), "--once"]
    # A key of the environment is a secret of its owner's, and is in the other machine's as well.
    words += [] if os.environ.get(KEY) else ["--key", key_of_head()]
    return shlex.join(words)


def _in_order(lines: list[Waiting]) -> Iterator[Waiting]:
    """Yield the lines by the numbers that nodes ask for; those that ask for none come in between, as they came."""
    wanting = {said["node_rank"]: (line, said) for line, said in lines if said["node_rank"] in range(1, len(lines) + 1)}
    rest = [part for part in lines if part not in wanting.values()]
    for node_rank in range(1, len(lines) + 1):
        yield wanting[node_rank] if node_rank in wanting else rest.pop(0)
