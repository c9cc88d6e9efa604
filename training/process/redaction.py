"""What may be written down of a text: never a secret, never pages without end; standard library only."""

import logging
import os
import re
import sys
import threading
import traceback
from types import TracebackType
from typing import Any
from urllib.parse import unquote

MAX_CHARACTERS = 20_000
"""Of one log line or traceback at most; the middle of a longer one is left out."""

TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
"""A token of the Hugging Face Hub."""

_CREDENTIALS = re.compile(r"//[^/\s]*@")
_QUERY = re.compile(r"(://[^\s?]*)\?\S*")
_PASSWORD_OF_ADDRESS = re.compile(r"://[^/\s:]*:([^/\s]+)@")
_NAMES_OF_SECRETS = re.compile(
    r"(TOKEN|PASSWORD|PASSWD|PASSPHRASE|(^|_)PASS|_PWD|(^|_)PAT|SECRET|(SECRET|ACCESS|API|PRIVATE|ACCOUNT)_?KEY"
    r"|CREDENTIALS?|CONNECTION_STRING|CONN_STR|AUTH_STRING|(NOTIFY|WEBHOOK)_URL|WEBHOOK)$",
    re.IGNORECASE,
)
_NAMES_IN_QUERIES = re.compile(r"token|key|secret|pass|pwd|auth|sig|cred|code|session|jwt|sas", re.IGNORECASE)
_LONG_VALUE = 16
"""Of a query: more likely a secret than a word, whatever its name."""
_ASSIGNED = re.compile(
    r"\b((?:access|auth|api|account|shared|private|secret)?[_-]?(?:access)?[_-]?(?:token|key|password|passwd|pwd|secret"
    r"|signature)=)(?!\*\*\*)[^\s&;,'\"<>)\]]{6,}",
    re.IGNORECASE,
)
"""As in a query or a connection string that stands alone; `eos_token=` is none."""
_MIN_SECRET_CHARACTERS = 6
"""A shorter value is more likely a word than a secret, and would be taken out of every line that holds it."""


def redact(text: str) -> str:
    """Return the text without Hub tokens, credentials and query strings of addresses, and secrets of the environment.

    A secret of the environment is the value of any variable whose name ends like one (HF_TOKEN, ..._PASSWORD), and, in
    a variable that holds an address (HTTPS_PROXY), its password and what stands in its query. `token=...` and the like
    lose their value wherever they stand.
    """
    text = TOKEN.sub("hf_***", text)
    for secret in _list_environment_secrets():
        text = text.replace(secret, "***")
    if "=" in text:
        text = _ASSIGNED.sub(r"\1***", text)
    if "//" in text:
        text = _QUERY.sub(r"\1", _CREDENTIALS.sub("//***@", text))
    return text


def _list_environment_secrets() -> list[str]:
    """Return the values, and what a server would say of them, the longest first: one may be a part of another."""
    found = set()
    for name, value in os.environ.items():
        if _NAMES_OF_SECRETS.search(name):
            # Of USER:PASSWORD and of an address that is a secret, also the part that a server would repeat.
            found |= {value, value.partition("://")[2].partition("/")[2], value.rpartition(":")[2].lstrip("/")}
        if "://" in value:
            if address := _PASSWORD_OF_ADDRESS.search(value):
                found.add(address[1])
            for part in value.partition("?")[2].split("&"):
                key, _, secret = part.partition("=")
                if _NAMES_IN_QUERIES.search(key) or len(secret) >= _LONG_VALUE:
                    found.add(secret)
    found |= {unquote(secret) for secret in found}
    return sorted((secret for secret in found if len(secret) >= _MIN_SECRET_CHARACTERS), key=len, reverse=True)


def shorten(text: str, *, limit: int = MAX_CHARACTERS) -> str:
    """Return the text, or its first and last part with the number of characters that are left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... [{len(text) - 2 * half:,} characters left out] ... {text[-half:]}"


def redact_logs() -> None:
    """From now on no logger of this process and no traceback that ends it writes a secret or an endless text."""
    logging.setLogRecordFactory(_make_redacted_record)
    sys.excepthook = _write_traceback
    threading.excepthook = lambda failed: _write_traceback(
        failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback
    )


def format_traceback(error: BaseException) -> str:
    """Return the traceback as it may be written down."""
    return redact(shorten("".join(traceback.format_exception(error))))


def _make_redacted_record(*arguments: Any, **named: Any) -> logging.LogRecord:
    record = logging.LogRecord(*arguments, **named)
    if record.exc_info and record.exc_info[1] is not None:
        # A formatter takes what stands here already, and formats nothing itself.
        record.exc_text = format_traceback(record.exc_info[1]).rstrip()
    try:
        whole = record.getMessage()
    except (TypeError, ValueError):
        return record  # logging says that the arguments do not fit
    said = redact(shorten(whole))
    if said != whole:
        record.msg, record.args = said, None
    return record


def _write_traceback(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    if not isinstance(error, SystemExit):
        sys.stderr.write(format_traceback(error))
