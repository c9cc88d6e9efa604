"""What listens: every socket that marked processes open for others to connect to, while they run."""

import contextlib
import ipaddress
import os
import stat
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.processes import left_of

_LISTENING = "0A"
"""Of TCP, as the kernel writes it."""
_LISTENING_UNIX = 0x10000
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


class Watcher:
    """While it is open, looks again and again, at the cost of a tenth of a core at most."""

    least_seconds = 0.02
    """Between two looks."""

    def __init__(self):
        self.found = set()
        self.num_looks = 0
        self._is_over = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._is_over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _watch(self):
        wait = self.least_seconds
        try:
            while not self._is_over.wait(wait):
                self.num_looks += 1
                began = time.thread_time()
                self.look()
                wait = max(self.least_seconds, (time.thread_time() - began) / _MOST_OF_A_CORE)
        except OSError as error:
            self._error = error


class Listeners(Watcher):
    """Looks at the sockets of all processes with the mark (tests/processes.py)."""

    def __init__(self, mark):
        super().__init__()
        self._mark = mark
        self._seen = set()

    def look(self):
        """Keep what is new."""
        new = {inode: found for inode, *found in _listening(self._seen)}
        self._seen |= set(new)
        for owner, inodes in _sockets_of(self._mark) if new else ():
            for inode in inodes & set(new):
                address, is_open = new[inode]
                self.found.add(Listener(str(address), owner, bool(is_open)))


def _listening(seen):
    """Yield inode, address and whether others can reach it, of every listening socket of this machine but those."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] not in seen:
                address, _, port = fields[1].partition(":")
                # Words of 32 bits, each written as the machine has it.
                ends = range(8, len(address) + 1, 8)
                packed = b"".join(struct.pack("=I", int(address[end - 8 : end], 16)) for end in ends)
                found = ipaddress.ip_address(packed)
                reached = getattr(found, "ipv4_mapped", None) or found
                yield fields[9], f"{found}:{int(port, 16)}", not reached.is_loopback
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and int(fields[3], 16) & _LISTENING_UNIX and fields[6] not in seen:
            yield fields[6], fields[7], _others_can_reach(fields[7])


def _others_can_reach(path):
    """Return whether another user gets to the file of a Unix socket: through every folder above it, and may write."""
    file = Path(path)
    with contextlib.suppress(FileNotFoundError):
        is_writable = file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        may_pass = all(folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) for folder in file.parents)
        return is_writable and may_pass
    return path.startswith("@")


def _sockets_of(mark):
    for pid, command in left_of(mark).items():
        inodes = set()
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
        yield command, inodes
