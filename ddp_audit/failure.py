"""Failures in one line with an exit code of their own, requests to stop, and texts without secrets."""

import os
import re
import signal
import sys
from collections.abc import Callable
from types import FrameType

from ddp_audit.process.stopping import StopEvent

_MOST_CHARACTERS = 4_000
_TOKEN = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|glpat-|xox[bp]-|AKIA)[A-Za-z0-9_-]{16,}")
_NAMES_OF_SECRETS = re.compile(
    r"TOKEN|PASS(WORD|WD|PHRASE)?$|_PWD|_PAT$|SECRET|(ACCESS|API|PRIVATE|ACCOUNT)_?KEY|_KEY$|CREDENTIAL|JWT|COOKIE|_URL$",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"((?:token|key|password|passwd|pwd|secret|signature)[=\s]+)[^\s&;,'\"<>)\]]{6,}", re.IGNORECASE)
_FEWEST_CHARACTERS = 6


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
        line = redact(" ".join(str(error).split()))[:_MOST_CHARACTERS]
        sys.stderr.write(
            "ddp-audit: " + "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line) + "\n"
        )
        sys.exit(error.exit_code)
    except OSError as error:
        sys.stderr.write(f"ddp-audit: {error.strerror}: {error.filename or 'a file'}; free space or permit it\n")
        sys.exit(4)
    except KeyboardInterrupt:
        sys.stderr.write("ddp-audit: interrupted\n")
        sys.exit(130)


def redact(text: str) -> str:
    """Return the text without tokens, secrets of the environment, and credentials of addresses."""
    secrets = {value for name, value in os.environ.items() if _NAMES_OF_SECRETS.search(name)}
    for secret in sorted((one for one in secrets if len(one) >= _FEWEST_CHARACTERS), key=len, reverse=True):
        text = text.replace(secret, "***")
    return re.sub(r"//[^/\s@]*@", "//***@", _ASSIGNED.sub(r"\1***", _TOKEN.sub("***", text)))
