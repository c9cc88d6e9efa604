"""One comparison at a time, per workspace and per machine: a second training would spoil the first one's times."""

import contextlib
import datetime
import errno
import fcntl
import hashlib
import json
import logging
import os
import pwd
import re
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tasks.process.failure import ResourceError, explain_permission_denied

_log = logging.getLogger(__name__)

WORKSPACE = Path(".work/comparison.lock")
"""Held by whoever runs the stages of this folder one after the other."""
_WRITTEN = (".dvc", ".prefect", ".work", "data", "reports")
"""Folders that a comparison writes into."""
_SILENT = "its holder did not say who it is"
_SECONDS_TO_INTRODUCE = 1.0
_MOST_NAMED = 8
"""Users that a warning names: anybody may take names."""
_held: set[str] = set()


def make_lock_name(folder: str | None = None) -> str:
    """Return the name of this user's lock in the kernel: another one for each temporary folder, by default ours."""
    digest = hashlib.sha256(os.path.realpath(folder or tempfile.gettempdir()).encode()).hexdigest()[:16]
    return f"\0ddp-compare/{digest}/{os.geteuid()}"


@contextlib.contextmanager
def lock_machine(purpose: str) -> Iterator[None]:
    """Hold the machine's lock; raises ResourceError (exit code 4) that names the holder if it is of the same user.

    Another user's comparison, or whatever has taken our name, costs a warning: nobody can keep others from working. The
    lock is a name in the kernel, not a file, so that there is nothing to remove, to replace or to leave unreadable; it
    is freed when its holder ends, however that ends. `TMPDIR` is part of the name.
    """
    name = make_lock_name()
    if name in _held:
        yield
        return
    if others := [_user_in(other) for other in _names_like(name) if other != name]:
        who = f"of the user {', '.join(others[:_MOST_NAMED])}"
        _log.warning("%s: another comparison may be training on this machine (%s) and spoil the times", purpose, who)
    with _taken(name, purpose) as listener:
        threading.Thread(
            target=_introduce, args=(listener, _make_introduction(purpose)), name="lock", daemon=True
        ).start()
        _held.add(name)
        try:
            yield
        finally:
            _held.discard(name)
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there


def is_taken(name: str) -> bool:
    """Return True if some process has bound the name, which begins with a NUL."""
    return name in _names_like(name)


def _names_like(name: str) -> list[str]:
    """Return the names that the kernel has of locks of this one's temporary folder, whoever's they say they are."""
    wanted = re.compile(rf"^.* @({re.escape(name[1:].rpartition('/')[0])}/\d{{1,10}})$", re.MULTILINE)
    with contextlib.suppress(OSError):
        text = Path("/proc/net/unix").read_text(errors="replace")
        return [f"\0{result}" for result in sorted(set(wanted.findall(text)))]
    return []


def _taken(name: str, purpose: str) -> socket.socket:
    """Return a socket bound to the name; ResourceError if a process of this user has it already."""
    listener = socket.socket(socket.AF_UNIX)
    while True:
        try:
            listener.bind(name)
            listener.listen(128)
            return listener
        except OSError as error:
            user, words = _find_holder(name) or (None, "")
            if user == os.geteuid():
                listener.close()
                raise ResourceError(
                    f"another comparison is training on this machine: {words or _SILENT}; "
                    "wait for it or stop it, then run again (finished segments are kept)"
                ) from None
            if error.errno != errno.EADDRINUSE or is_taken(name):
                _log.warning("%s: going on without the machine's lock, whose name is not to be had", purpose)
                return listener
            time.sleep(0.02)


def _introduce(listener: socket.socket, introduction: str) -> None:
    """Tell whoever of this user connects who holds the lock, until it is given back; nothing is ever read."""
    with contextlib.suppress(OSError):
        while True:
            caller, _ = listener.accept()
            with caller, contextlib.suppress(OSError):
                if _get_peer_user(caller) == os.geteuid():
                    caller.sendall(introduction.encode())


def _find_holder(name: str) -> tuple[int | None, str] | None:
    """Return (user id, what the holder says of itself); the id is the kernel's word, None where it has none.

    None if nobody has the name. Only to its own user does a holder's word go further than here.
    """
    deadline = time.monotonic() + _SECONDS_TO_INTRODUCE
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(_SECONDS_TO_INTRODUCE)
            # Refused where it has bound the name only just now, or where it does not want to be known.
            with contextlib.suppress(OSError):
                caller.connect(name)
                user = _get_peer_user(caller)
                words = ""
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    words = _describe_holder(caller.recv(4096)) if user == os.geteuid() else ""
                return user, words
        if not is_taken(name):
            return None
        time.sleep(0.02)
    return None, ""


def _get_peer_user(other: socket.socket) -> int:
    """Return the user id of the process at the other end: the kernel's word."""
    _, user, _ = struct.unpack("3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


def _user_in(name: str) -> str:
    """Return the user whose lock has this name, as the name says."""
    user = name.rpartition("/")[2]
    try:
        return pwd.getpwuid(int(user)).pw_name
    except KeyError:
        return user


def lock_workspace(purpose: str) -> contextlib.AbstractContextManager[None]:
    """Hold this folder's lock; raises ResourceError that names the holder if another process runs a comparison here.

    The same for a folder that this user may not write into as a whole, as after another user ran a comparison in it.
    """
    folder = Path.cwd()
    below = (Path(result) for name in _WRITTEN for result, _, _ in os.walk(folder / name))
    for path in (folder, folder / "dvc.lock", folder / "mlflow.db", *below):
        if path.exists() and not os.access(path, os.W_OK):
            raise ResourceError(f"{path}: {explain_permission_denied(path)}")
    return lock_file(
        WORKSPACE, purpose, refusal="a comparison runs in this folder already: {holder}; wait for it or stop it"
    )


@contextlib.contextmanager
def lock_file(path: Path, purpose: str, *, refusal: str) -> Iterator[None]:
    """Hold the lock of a file; the kernel frees it when its holder ends, however that ends.

    Raises ResourceError with the text `refusal`, in which {holder} becomes who has it, or where the file cannot be had.
    A lock that this process has already stays with whoever took it first.
    """
    path = path.absolute()
    if str(path) in _held:
        yield
        return
    handle = _open(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(refusal.format(holder=_read_holder(handle))) from None
        _write(handle, _make_introduction(purpose))
        _held.add(str(path))
        try:
            yield
        finally:
            _held.discard(str(path))
            _write(handle, "")
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except PermissionError:
        raise ResourceError(f"{path}: {explain_permission_denied(path if path.exists() else path.parent)}") from None
    except OSError as error:
        # A link, a folder or a file in the place of one of them, or a disk that takes nothing.
        raise ResourceError(f"{path}: {error.strerror}; remove what stands in its place, then run again") from None


def _make_introduction(purpose: str) -> str:
    return json.dumps(
        {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "folder": os.getcwd(),
            "purpose": purpose,
            "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
    )


def _describe_holder(introduction: bytes) -> str:
    return "{purpose}, pid {pid} on {host}, since {started_at}, in {folder}".format(**json.loads(introduction))


def _write(handle: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def _read_holder(handle: int) -> str:
    """Return who holds the lock; waits a moment for one that has only just got it and has not said so yet."""
    deadline = time.monotonic() + _SECONDS_TO_INTRODUCE
    while time.monotonic() < deadline:
        with contextlib.suppress(ValueError, KeyError, OSError):
            introduction = os.pread(handle, 4096, 0)
            facts = json.loads(introduction)
            if facts["host"] != socket.gethostname() or psutil.pid_exists(facts["pid"]):
                return _describe_holder(introduction)
        time.sleep(0.02)
    return _SILENT
