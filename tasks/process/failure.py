"""Failures a user can mend: one line and an exit code of their own, never a traceback."""

import atexit
import contextlib
import errno
import gc
import os
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

from ddp_audit.process.redaction import redact_line, redact_logs
from tasks.process.proxies import bypass_proxies_on_loopback
from tasks.process.stopping import end_with_parent, exit_on_signals, is_stopped_by_hand
from training.process.safe_loading import UnsafeTorchError, require_safe_torch


class ExitCode(IntEnum):
    """The exit codes of every command of this project."""

    OK = 0
    CONFIGURATION = 2
    DATA = 3
    RESOURCES = 4
    DIVERGED = 5
    DISTRIBUTED = 6
    REGRESSED = 7
    PREEMPTED = 75
    INTERRUPTED = 130


_OBJECTS_BEFORE_COLLECTING = 10_000
"""Of Python's collector of reference cycles."""
_UNWRITTEN = 120
"""Python's own exit code where standard output or error takes no more at the end."""

STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What the system says where a disk takes no more."""
FREE_SPACE = "free space or choose another disk"


class StageError(ValueError):
    """A failure that one line explains: what, got, allowed, remedy."""

    exit_code: int = ExitCode.CONFIGURATION


class ConfigurationError(StageError):
    """params.yaml, the command line or the environment asks for what cannot be."""


class DataError(StageError):
    """A data set, a model or a checkpoint is not what it has to be."""

    exit_code = ExitCode.DATA


class ResourceError(StageError):
    """Disk, memory, devices or the machine's lock are not to be had."""

    exit_code = ExitCode.RESOURCES


class OutOfMemoryError(ResourceError):
    """A rank found no memory for a micro-batch."""


class DivergedError(StageError):
    """The numbers of the training left the finite."""

    exit_code = ExitCode.DIVERGED


class DistributedError(StageError):
    """A rank or its launcher failed."""

    exit_code = ExitCode.DISTRIBUTED


class PreemptedError(StageError):
    """The work was asked to stop, saved what it had, and goes on from there at the next run."""

    exit_code = ExitCode.PREEMPTED


@contextlib.contextmanager
def end_without_teardown() -> Iterator[None]:
    """Have the process end as soon as threads have ended and exit handlers have run, with the code that it would have.

    Taking apart what was imported takes over two seconds where torch and transformers are. Enter it before anything
    that registers exit handlers: the last to run is the first that was registered.
    """
    code = 1

    def leave() -> None:
        ending = code
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                ending = ending or _UNWRITTEN
        os._exit(ending)

    atexit.register(leave)
    try:
        yield
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


@end_without_teardown()
def exit_with_one_line(command: Callable[[], None], *, name: str) -> NoReturn:
    """Run `command` and end the process: 0, or the failure's own exit code after one line on stderr.

    Only failures that a user can mend become one line; anything else keeps its traceback, since it is ours.
    The process also ends with its parent, and with 75 when it is asked to; it writes no secret into a log, the line or
    a traceback.
    """
    exit_on_signals(name)
    # Large packages are imported with a sixth less processor time than at Python's own 700.
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTING)
    end_with_parent()
    bypass_proxies_on_loopback()
    redact_logs()
    try:
        try:
            require_safe_torch()
        except UnsafeTorchError as error:
            raise ConfigurationError(str(error)) from None
        command()
    except StageError as error:
        sys.stderr.write(f"{name}: {redact_line(str(error))}\n")
        is_by_hand = isinstance(error, PreemptedError) and is_stopped_by_hand()
        sys.exit(ExitCode.INTERRUPTED if is_by_hand else error.exit_code)
    except PermissionError as error:
        # Of a process, not of a file.
        if not error.filename:
            raise
        sys.stderr.write(
            f"{name}: "
            f"{redact_line(f'{error.filename}: {explain_permission_denied(Path(os.fsdecode(error.filename)))}')}\n"
        )
        sys.exit(ExitCode.RESOURCES)
    except OSError as error:
        if error.errno not in STORAGE_ERRORS:
            raise
        sys.stderr.write(f"{name}: {error.strerror}: {error.filename or 'a file'}; {FREE_SPACE}\n")
        sys.exit(ExitCode.RESOURCES)
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(ExitCode.OK)


def explain_permission_denied(path: Path) -> str:
    """Return whose a path is that this user may not use, and how to get it: the end of a line that begins with it."""
    there = next((parent for parent in (path, *path.absolute().parents) if os.access(parent, os.F_OK)), Path("/"))
    with contextlib.suppress(KeyError, OSError):
        owner = there.owner()
        if os.stat(there).st_uid != os.geteuid():
            return f"permission denied, it belongs to {owner}; `sudo chown -R $USER .` makes this folder yours"
    return "permission denied; make it writable (`chmod -R u+rwX .`), or move the project"
