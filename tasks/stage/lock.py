"""One comparison at a time per machine, whoever starts it: a second training would spoil the first one's times."""

import contextlib
import datetime
import fcntl
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tasks.stage.failure import ResourceError


def lock_file() -> Path:
    """Return the machine's lock file; the kernel frees it when its holder ends, however that ends."""
    return Path(tempfile.gettempdir()) / "ddp-compare.lock"


@contextlib.contextmanager
def machine_lock(purpose: str) -> Iterator[None]:
    """Hold the machine's lock; raises ResourceError (exit code 4) that names the holder if another process has it."""
    handle = _open(lock_file())
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(
                f"another comparison is training on this machine: {_holder(handle)}; "
                "wait for it or stop it, then run again (finished segments are kept)"
            ) from None
        _say_who_holds(handle, purpose)
        yield
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o666)
    except PermissionError:
        # Another user's file: enough to take the lock and read who holds it.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _say_who_holds(handle: int, purpose: str) -> None:
    text = json.dumps(
        {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "folder": os.getcwd(),
            "purpose": purpose,
            "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
    )
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def _holder(handle: int) -> str:
    try:
        facts = json.loads(os.pread(handle, 4096, 0))
        return "{purpose}, pid {pid} on {host}, since {started_at}, in {folder}".format(**facts)
    except (ValueError, KeyError, OSError):
        return "its holder did not say who it is"
