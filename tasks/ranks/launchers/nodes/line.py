"""Lines between the head and the other nodes: who knocks at the head's door with its key gets one.

Messages are JSON objects, files go as they are; nothing that arrives is ever run or unpickled.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from tasks.process.failure import ConfigurationError

KEY = "DDP_COMPARE_NODES_SECRET"
"""Environment variable with the key of the door, on all nodes; without it the head makes one."""
_KEY_FILE = Path(".work/nodes.key")
_SECONDS_TO_CONNECT = 10.0
_KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""For a line on which nothing is said, while a node waits for work: the other machine may be gone without a word."""


class LostError(Exception):
    """The other end is gone, or says nothing."""


class Line:
    """One end of a line; for one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.heard_at = time.monotonic()
        """When something came last."""

    def say(self, **message: Any) -> None:
        """Send a message; raises LostError if the other end is gone."""
        self.say_bytes(json.dumps(message).encode())

    def say_bytes(self, content: bytes) -> None:
        """Send bytes as they are."""
        try:
            self._connection.send_bytes(content)
        except OSError as error:
            raise LostError(str(error)) from None

    def hear(self, timeout: float) -> dict[str, Any] | None:
        """Return the next message, None if none has come in time; raises LostError if the other end is gone."""
        try:
            if not self._connection.poll(timeout):
                return None
        except OSError as error:
            raise LostError(str(error)) from None
        message: dict[str, Any] = json.loads(self.hear_bytes())
        return message

    def hear_bytes(self) -> bytes:
        """Return what was sent by `say_bytes`, waiting for it."""
        try:
            content = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise LostError(str(error) or "it hung up") from None
        self.heard_at = time.monotonic()
        return content

    def leave(self) -> socket.socket:
        """Return the bare socket; the line is over."""
        return socket.socket(fileno=os.dup(self._connection.fileno()))

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigurationError(f"rendezvous: got {text!r}; allowed: HOST:PORT, such as 10.0.0.1:29400")
    return host, int(port)


def get_head_key() -> str:
    """Return the key of the door: that of the environment, else one made once for this folder."""
    if key := os.environ.get(KEY):
        return key
    if not _KEY_FILE.exists():
        _KEY_FILE.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            handle = os.open(_KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(16))
    return _KEY_FILE.read_text()


def knock(address: tuple[str, int], key: str) -> Line | None:
    """Return a line to the head; None if nobody is at the door now. Raises AuthenticationError for another key."""
    try:
        plug = socket.create_connection(address, timeout=_SECONDS_TO_CONNECT)
    except OSError:
        return None
    connection = _make_connection(plug)
    try:
        answer_challenge(connection, key.encode())
        deliver_challenge(connection, key.encode())
    except (EOFError, OSError):
        connection.close()
        return None
    return Line(connection)


class Door:
    """The head's: every line that comes is given to `on_line` together with its first message, in a thread of its own.

    Raises ConfigurationError where the address is none of this machine, or taken.
    """

    def __init__(self, address: tuple[str, int], key: str, on_line: Callable[[Line, dict[str, Any]], None]) -> None:
        self._key = key.encode()
        self._on_line = on_line
        try:
            self._plug = socket.create_server(address, backlog=64)
        except OSError as error:
            raise ConfigurationError(
                f"nodes.rendezvous: {address[0]}:{address[1]}: {error.strerror}; allowed: an address of this machine, "
                "as the other nodes reach it, and a free port"
            ) from None
        threading.Thread(target=self._wait, name="door", daemon=True).start()

    def _wait(self) -> None:
        while True:
            plug, _ = self._plug.accept()
            # Whoever comes and says nothing keeps nobody else waiting.
            threading.Thread(target=self._open, args=(plug,), name="door", daemon=True).start()

    def _open(self, plug: socket.socket) -> None:
        connection = _make_connection(plug)
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            line = Line(connection)
            first = line.hear(_SECONDS_TO_CONNECT)
        except (EOFError, OSError, AuthenticationError, LostError, ValueError):
            connection.close()
            return
        if first is not None:
            self._on_line(line, first)


def _make_connection(plug: socket.socket) -> Connection:
    plug.settimeout(None)
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for level, option, value in options:
        plug.setsockopt(level, option, value)
    return Connection(plug.detach())


def relay(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until one end hangs up; returns at once."""
    for source, destination in ((one, other), (other, one)):
        threading.Thread(target=_carry, args=(source, destination), name="relay", daemon=True).start()


def _carry(source: socket.socket, destination: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(65536):
            destination.sendall(content)
    for plug in (source, destination):
        with contextlib.suppress(OSError):
            plug.shutdown(socket.SHUT_RDWR)
