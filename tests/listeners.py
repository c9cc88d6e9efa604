"""What listens: every socket that marked processes open for others to connect to, while they run."""

import contextlib
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.processes import left_of

_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP = 4, 20, 0x301
_LISTENING, _IS_DONE, _IS_ERROR = 1 << 10, 3, 2
"""The kernel's words (linux/sock_diag.h, linux/inet_diag.h, linux/netlink.h). /proc/net/tcp says the same, but goes
through all connections that a machine could have: 7 ms for both families on Linux 6.18, against less than 0.1 ms."""
_LISTENING_UNIX = 0x10000
_SECONDS_BETWEEN_LOOKS = 0.02
_MOST_OF_A_CORE = 0.1
"""A look takes the longer the more is open on the machine; what listens does so for as long as somebody may come."""


@dataclass(frozen=True)
class Listener:
    """One socket that waits for connections."""

    address: str
    """`ADDRESS:PORT`; of a Unix socket its path, which begins with @ where it is no file."""
    owner: str
    """Command line of the process that has it."""
    is_open: bool
    """Whether anybody else can reach it: from another machine, or as another user through the file system."""


class Listeners:
    """While it is open, looks at the sockets of all processes with the mark (tests/processes.py)."""

    def __init__(self, mark: dict[str, str]) -> None:
        self.found: set[Listener] = set()
        self.num_looks = 0
        self._mark = mark
        self._seen: set[str] = set()
        self._is_over = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        try:
            self._look_again_and_again()
        except OSError as error:
            self._error = error

    def _look_again_and_again(self) -> None:
        wait = _SECONDS_BETWEEN_LOOKS
        while not self._is_over.wait(wait):
            self.num_looks += 1
            began = time.thread_time()
            new = {inode: found for inode, *found in _listening(self._seen)}
            wait = max(_SECONDS_BETWEEN_LOOKS, (time.thread_time() - began) / _MOST_OF_A_CORE)
            if not new:
                continue
            self._seen |= set(new)
            for owner, inodes in _sockets_of(self._mark):
                for inode in inodes & set(new):
                    address, is_open = new[inode]
                    self.found.add(Listener(str(address), owner, bool(is_open)))


def _listening(seen: Collection[str] = ()) -> Iterator[tuple[str, str, bool]]:
    """Yield inode, address and whether others can reach it, of every listening socket of this machine but those."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for inode, address, port in _listening_tcp(family):
            if inode not in seen:
                is_loopback = address.startswith("127.") or address in ("::1", "::ffff:127.0.0.1")
                yield inode, f"{address}:{port}", not is_loopback
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and int(fields[3], 16) & _LISTENING_UNIX and fields[6] not in seen:
            yield fields[6], fields[7], _others_can_reach(fields[7])


def _listening_tcp(family: socket.AddressFamily) -> Iterator[tuple[str, str, int]]:
    """Yield inode, address and port of every TCP socket of a family that listens."""
    question = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 0, 0, _LISTENING)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(10)
        kernel.send(struct.pack("=IHHII", 16 + len(question), _SOCK_DIAG_BY_FAMILY, _DUMP, 0, 0) + question)
        while True:
            answer = kernel.recv(1 << 20)
            while answer:
                length, kind = struct.unpack_from("=IH", answer)
                if kind in (_IS_DONE, _IS_ERROR):
                    if code := struct.unpack_from("=i", answer, 16)[0]:
                        raise OSError(-code, "the kernel does not list TCP sockets")
                    return
                port, address, inode = struct.unpack_from("!H2x16s", answer, 20) + struct.unpack_from("=I", answer, 84)
                yield str(inode), socket.inet_ntop(family, address[: 4 if family == socket.AF_INET else 16]), port
                answer = answer[(length + 3) & ~3 :]


def _others_can_reach(path: str) -> bool:
    """Return whether another user gets to the file of a Unix socket: through every folder above it, and may write."""
    file = Path(path)
    with contextlib.suppress(FileNotFoundError):
        is_writable = file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        may_pass = all(folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) for folder in file.parents)
        return bool(is_writable and may_pass)
    return path.startswith("@")


def _sockets_of(mark: dict[str, str]) -> Iterator[tuple[str, set[str]]]:
    for pid, command in left_of(mark).items():
        inodes = set()
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
        yield command, inodes
