"""Failures a user can mend: one line and an exit code of their own, never a traceback."""

import errno
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import NoReturn

from tasks.stage.parent import end_with_parent
from tasks.stage.stopping import exit_on_signals, is_stopped_by_hand


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


STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What the system says where a disk takes no more."""


class StageError(ValueError):
    """A failure that one line explains: what, got, allowed, remedy."""

    exit_code: ExitCode = ExitCode.CONFIGURATION


class ConfigurationError(StageError):
    """params.yaml, the command line or the environment asks for what cannot be."""


class DataError(StageError):
    """A data set, a model or a checkpoint is not what it has to be."""

    exit_code = ExitCode.DATA


class ResourceError(StageError):
    """Disk, memory, devices or the machine's lock are not to be had."""

    exit_code = ExitCode.RESOURCES


class DivergedError(StageError):
    """The numbers of the training left the finite."""

    exit_code = ExitCode.DIVERGED


class DistributedError(StageError):
    """A rank or its launcher failed."""

    exit_code = ExitCode.DISTRIBUTED


class PreemptedError(StageError):
    """The work was asked to stop, saved what it had, and goes on from there at the next run."""

    exit_code = ExitCode.PREEMPTED


def exit_with_one_line(command: Callable[[], None], *, name: str) -> NoReturn:
    """Run `command` and end the process: 0, or the failure's own exit code after one line on stderr.

    Only failures that a user can mend become one line; anything else keeps its traceback, since it is ours.
    The process also ends with its parent, and with 75 when it is asked to.
    """
    exit_on_signals(name)
    end_with_parent()
    try:
        command()
    except StageError as error:
        sys.stderr.write(f"{name}: {' '.join(str(error).split())}\n")
        is_by_hand = isinstance(error, PreemptedError) and is_stopped_by_hand()
        sys.exit(ExitCode.INTERRUPTED if is_by_hand else error.exit_code)
    except OSError as error:
        if error.errno not in STORAGE_ERRORS:
            raise
        sys.stderr.write(f"{name}: {error.strerror}: {error.filename or 'a file'}; free space or choose another disk\n")
        sys.exit(ExitCode.RESOURCES)
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(ExitCode.OK)
