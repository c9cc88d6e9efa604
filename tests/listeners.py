"""What listens: every socket that marked processes open for others to connect to, while they run."""

import contextlib
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.processes import left_of

_LISTENING = "0A"
_LISTENING_UNIX = 0x10000
_SOCKET_DIAGNOSIS, _BY_FAMILY, _REQUEST, _DUMP, _DONE, _HEADER = 4, 20, 0x1, 0x300, 3, 16
"""Of netlink: NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, NLM_F_DUMP, NLMSG_DONE, bytes of a header."""
_SECONDS_BETWEEN_LOOKS = 0.02


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
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN_LOOKS):
            self.num_looks += 1
            new = {inode: found for inode, *found in _listening() if inode not in self._seen}
            if not new:
                continue
            self._seen |= set(new)
            for owner, inodes in _sockets_of(self._mark):
                for inode in inodes & set(new):
                    address, is_open = new[inode]
                    self.found.add(Listener(str(address), owner, bool(is_open)))


def _listening() -> Iterator[tuple[str, str, bool]]:
    """Yield inode, address and whether others can reach it, of every listening socket of this machine."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for address, port, inode in _ask_kernel(family):
            is_loopback = address.startswith("127.") or address in ("::1", "::ffff:127.0.0.1")
            yield inode, f"{address}:{port}", not is_loopback
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and int(fields[3], 16) & _LISTENING_UNIX:
            yield fields[6], fields[7], _others_can_reach(fields[7])


def _ask_kernel(family: socket.AddressFamily) -> Iterator[tuple[str, int, str]]:
    """Yield address, port and inode of every socket that listens for TCP connections, as sock_diag(7) tells them.

    /proc/net/tcp says the same in fifty times the time, since it goes through all connections as well.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCKET_DIAGNOSIS) as asked:
        wanted = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << int(_LISTENING, 16)) + bytes(48)
        asked.send(struct.pack("=IHHII", _HEADER + len(wanted), _BY_FAMILY, _REQUEST | _DUMP, 1, 0) + wanted)
        while True:
            told, at = asked.recv(1 << 16), 0
            while at < len(told):
                size, kind = struct.unpack_from("=IH", told, at)
                if kind == _DONE:
                    return
                assert kind == _BY_FAMILY, f"the kernel answers with a message of type {kind}"
                (port,) = struct.unpack_from("!H", told, at + _HEADER + 4)
                (inode,) = struct.unpack_from("=I", told, at + _HEADER + 68)
                begin = at + _HEADER + 8
                address = told[begin : begin + (4 if family == socket.AF_INET else 16)]
                yield socket.inet_ntop(family, address), port, str(inode)
                at += (size + 3) & ~3


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
