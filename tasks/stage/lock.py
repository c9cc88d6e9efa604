"""One comparison at a time, per workspace and per machine: a second training would spoil the first one's times."""

import contextlib
import datetime
import fcntl
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.stage.failure import ResourceError

WORKSPACE = Path(".work/comparison.lock")
"""Held by whoever runs the stages of this folder one after the other."""
_SECONDS_TO_INTRODUCE = 1.0
_held: set[Path] = set()


def lock_file() -> Path:
    """Return the machine's lock file."""
    return Path(tempfile.gettempdir()) / "ddp-compare.lock"


def machine_lock(purpose: str) -> contextlib.AbstractContextManager[None]:
    """Hold the machine's lock; raises ResourceError (exit code 4) that names the holder if another process has it."""
    return holding(
        lock_file(),
        purpose,
        refusal="another comparison is training on this machine: {holder}; "
        "wait for it or stop it, then run again (finished segments are kept)",
    )


def workspace_lock(purpose: str) -> contextlib.AbstractContextManager[None]:
    """Hold this folder's lock; raises ResourceError that names the holder if another process runs a comparison here."""
    return holding(
        WORKSPACE, purpose, refusal="a comparison runs in this folder already: {holder}; wait for it or stop it"
    )


@contextlib.contextmanager
def holding(path: Path, purpose: str, *, refusal: str) -> Iterator[None]:
    """Hold the lock of a file; the kernel frees it when its holder ends, however that ends.

    Raises ResourceError with the text `refusal`, in which {holder} becomes who has it. A lock that this process has
    already stays with whoever took it first.
    """
    path = path.absolute()
    if path in _held:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _open(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(refusal.format(holder=_holder(handle))) from None
        _write(handle, _introduction(purpose))
        _held.add(path)
        try:
            yield
        finally:
            _held.discard(path)
            _write(handle, "")
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o666)
    except PermissionError:
        # Another user's file: enough to take the lock and read who holds it.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _introduction(purpose: str) -> str:
    return json.dumps(
        {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "folder": os.getcwd(),
            "purpose": purpose,
            "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
    )


def _write(handle: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def _holder(handle: int) -> str:
    """Return who holds the lock; waits a moment for one that has only just got it and has not said so yet."""
    deadline = time.monotonic() + _SECONDS_TO_INTRODUCE
    while True:
        with contextlib.suppress(ValueError, KeyError, OSError):
            facts = json.loads(os.pread(handle, 4096, 0))
            if facts["host"] != socket.gethostname() or _is_alive(facts["pid"]):
                return "{purpose}, pid {pid} on {host}, since {started_at}, in {folder}".format(**facts)
        if time.monotonic() > deadline:
            return "its holder did not say who it is"
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
