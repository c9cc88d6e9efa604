"""Where nodes wait for the head's launches: one door per address for as long as this process lives."""

import contextlib
import threading
from collections.abc import Collection
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any

from tasks.ranks.launchers.nodes.line import Door, Line, LostError, parse_address, relay

_lobbies: dict[str, "Lobby"] = {}
_opening = threading.Lock()


class Lobby:
    """Lines of nodes without work, and the ways of their ranks to the stage."""

    def __init__(self, address: str, key: str) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Line, dict[str, Any]]] = []
        self.ways: dict[str, str] = {}
        """Launch -> Unix socket at which the stage waits for its ranks."""
        self._door = Door(parse_address(address), key, self._let_in)

    def take(self, *, but_not: Collection[str]) -> tuple[Line, dict[str, Any]] | None:
        """Return the line of a node that waits, and what it said of itself; None if there is none, or only those."""
        with self._lock:
            free = [part for part in self._waiting if part[1]["node"] not in but_not]
            if not free:
                return None
            line, said = free[0]
            self._waiting.remove(free[0])
        try:
            line.hear(0)
        except LostError:
            line.close()
            return self.take(but_not=but_not)
        return line, said

    def _let_in(self, line: Line, said: dict[str, Any]) -> None:
        if "rank_of" not in said:
            with self._lock:
                self._waiting.append((line, said))
            return
        with contextlib.suppress(OSError, KeyError):
            plug = socket(AF_UNIX, SOCK_STREAM)
            plug.connect(self.ways[said["rank_of"]])
            relay(line.leave(), plug)
        line.close()


def open_lobby(address: str, key: str) -> Lobby:
    """Return the lobby of this address; opened the first time."""
    with _opening:
        if address not in _lobbies:
            _lobbies[address] = Lobby(address, key)
        return _lobbies[address]
