"""The lines over which a stage has ranks of another machine run blocks: here a thread, there an actor.

Ray sends the class as it is, so that only the standard library is imported.
"""

import contextlib
import shutil
import socket
import tempfile
from multiprocessing.connection import Connection
from typing import Any


class RankLines:
    """The lines over which ranks of another machine get blocks to run: each comes to a socket of their own user.

    It starts nothing, so that it may wait for all ranks at a time, each in a thread.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ddp-")
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(f"{self._folder}/line")
        self._door.listen(128)
        self._lines: dict[int, Connection] = {}

    def tell_address(self) -> str:
        """Return the path of the socket."""
        return f"{self._folder}/line"

    def accept(self, line: int) -> bytes:
        """Wait for a rank, which is this line from here on; return what it says first."""
        plug, _ = self._door.accept()
        self._lines[line] = Connection(plug.detach())
        return self._lines[line].recv_bytes()

    def exchange(self, line: int, message: bytes) -> bytes:
        """Return the rank's answer; raises EOFError or OSError once it has ended."""
        self._lines[line].send_bytes(message)
        return self._lines[line].recv_bytes()

    def close(self) -> None:
        """Hang up: ranks that wait for something to do then end."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for line in self._lines.values():
            line.close()


def carry(lines: Any, line: int, address: str) -> None:
    """Carry what the stage asks of a rank on another machine there, and its answers back, until one hangs up.

    `lines`: the actor there; `address`: the stage's socket.
    """
    import ray

    with contextlib.suppress(OSError, EOFError, ray.exceptions.RayError):
        first = ray.get(lines.accept.remote(line))
        plug = socket.socket(socket.AF_UNIX)
        plug.connect(address)
        with Connection(plug.detach()) as stage:
            stage.send_bytes(first)
            while True:
                stage.send_bytes(ray.get(lines.exchange.remote(line, stage.recv_bytes())))
