"""Failures in one line with an exit code of their own, and requests to stop."""

import signal
import sys
from collections.abc import Callable
from types import FrameType

from ddp_audit.process.lifeline import StopEvent
from ddp_audit.process.redaction import redact_line


class AuditError(ValueError):
    """A failure that one line explains."""

    exit_code = 2


class ConfigurationError(AuditError):
    """What is asked for cannot be audited."""


class ScriptError(AuditError):
    """The script failed or hung."""

    exit_code = 6


class StoppedError(AuditError):
    """The audit was asked to stop."""

    exit_code = 75


def stop_on_signals() -> StopEvent:
    """Return the event that the first of these signals sets; a second SIGINT raises KeyboardInterrupt."""
    stop = StopEvent()

    def ask(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, ask)
    return stop


def run_in_one_line(command: Callable[[], int]) -> None:
    """Exit with what the command returns, or with one line and the code of its error."""
    try:
        sys.exit(command())
    except AuditError as error:
        sys.stderr.write(f"ddp-audit: {redact_line(str(error))}\n")
        sys.exit(error.exit_code)
    except OSError as error:
        sys.stderr.write(f"ddp-audit: {error.strerror}: {error.filename or 'a file'}; free space or permit it\n")
        sys.exit(4)
    except KeyboardInterrupt:
        sys.stderr.write("ddp-audit: interrupted\n")
        sys.exit(130)
