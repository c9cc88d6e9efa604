"""How the nodes of a launch come together: some wait already, others are started by a command or by hand."""

import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.process.failure import ConfigurationError, ResourceError
from tasks.ranks.launchers import Nodes
from tasks.ranks.launchers.nodes.line import KEY, Line, get_head_key
from tasks.ranks.launchers.nodes.lobby import Lobby

_log = logging.getLogger(__name__)

_LOGS = Path(".work/nodes")
_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BEFORE_ASKING = 2.0
"""Nodes that wait already come at once."""
_PATIENCE_SECONDS = 30
"""How long a node that was started by a command waits for another launch: the stages follow one another."""

Waiting = tuple[Line, dict[str, Any]]
"""A node's line, and what it said of itself."""


@dataclass(frozen=True)
class _Started:
    """A node that a command has started."""

    log: Path
    process: "subprocess.Popen[bytes]"


_starting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="start nodes")
"""Lasts as long as this process: what ends with its parent ends with the thread that started it."""
_started: dict[int, _Started] = {}
"""By the number of the node. They serve all launches of this process, several of which may run at a time."""


class Gathering:
    """The nodes beside the head that one launch needs."""

    def __init__(self, nodes: Nodes, *, cell: str) -> None:
        self._nodes = nodes
        self._cell = cell

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
            if not has_asked and waited > _SECONDS_BEFORE_ASKING:
                has_asked = True
                self._ask_for_nodes(missing)
            if waited > self._nodes.wait_seconds:
                raise ResourceError(
                    f"cell {self._cell}: {missing} of {self._nodes.num_nodes} nodes did not come to "
                    f"{self._nodes.rendezvous} in {waited:.0f} s; on each of them: {make_join_command(self._nodes)}"
                )
            if has_asked:
                self._look_at_started()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return list(_sort_lines(found))

    def _ask_for_nodes(self, missing: int) -> None:
        if self._nodes.start_command is None:
            _log.warning(
                "%s waits for %d more nodes; on each, in a copy of this project: %s",
                self._cell, missing, make_join_command(self._nodes),
            )  # fmt: skip
            return
        for node_rank in range(1, self._nodes.num_nodes):
            if node_rank in _started and _started[node_rank].process.poll() is None:
                continue
            command = f"cd {shlex.quote(str(Path.cwd()))} && exec {make_join_command(self._nodes, node_rank=node_rank)}"
            words = shlex.split(self._nodes.start_command)
            words = [word.replace("{node_rank}", str(node_rank)).replace("{command}", command) for word in words]
            file = _LOGS / f"start-{node_rank}.log"
            file.parent.mkdir(parents=True, exist_ok=True)
            _started[node_rank] = _starting.submit(_start, words, file).result()

    def _look_at_started(self) -> None:
        for node_rank, started in list(_started.items()):
            if started.process.poll():
                del _started[node_rank]
                said = " ".join(started.log.read_text(errors="replace").strip().splitlines()[-1:])
                raise ConfigurationError(
                    f"nodes.start_command ended with exit code {started.process.returncode}: "
                    f"{said or 'it said nothing'}; its log: {started.log}"
                )


def _start(words: list[str], log: Path) -> _Started:
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    return _Started(log=log, process=process)


def make_join_command(nodes: Nodes, *, node_rank: int | None = None) -> str:
    """Return the command that makes another machine a node; with a number, as that one, and until the head is gone."""
    words = [
        "python" if node_rank is None else sys.executable,
        "-m",
        "tasks.ranks.launchers.nodes.join",
        nodes.rendezvous,
    ]
    if node_rank is not None:
        words += ["--node-rank", str(node_rank), "--patience", str(_PATIENCE_SECONDS)]
    # A key of the environment is a secret of its owner's, and is in the other machine's as well.
    words += [] if os.environ.get(KEY) else ["--key", get_head_key()]
    return shlex.join(words)


def _sort_lines(lines: list[Waiting]) -> Iterator[Waiting]:
    """Yield the lines by the numbers that nodes ask for; those that ask for none come in between, as they came."""
    wanting = {said["node_rank"]: (line, said) for line, said in lines if said["node_rank"] in range(1, len(lines) + 1)}
    rest = [part for part in lines if part not in wanting.values()]
    for node_rank in range(1, len(lines) + 1):
        yield wanting[node_rank] if node_rank in wanting else rest.pop(0)
