"""What may be written down of a text: never a secret, never pages without end; standard library only."""

import base64
import contextlib
import functools
import html
import json
import logging
import os
import re
import sys
import threading
import traceback
import urllib.parse
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

MAX_CHARACTERS = 20_000
"""Of one log line or traceback at most; the middle of a longer one is left out."""

_MOST_CHARACTERS_OF_LINE = 4_000

TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
"""A token of the Hugging Face Hub."""

HIDDEN = "***"
"""What stands for a secret."""

_TOKENS_OF_OTHERS = re.compile(r"\b(?:sk-|gh[oprsu]_|github_pat_|glpat-|xox[bp]-|AKIA)[A-Za-z0-9_-]{16,}")
_CREDENTIALS = re.compile(r"//(?:[^/\s:@]+:(?!\d{1,5}/)[^\s'\"<>]*|[^/\s]*)@")
_QUERY = re.compile(r"(://[^\s?]*)\?\S*")
_OF_ADDRESS = re.compile(r"://([^/\s:@]*)(?::(\S+))?@")
_NAMES_OF_SECRETS = re.compile(
    r"(TOKEN|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|SECRET|(SECRET|ACCESS|API|PRIVATE|ACCOUNT)KEY|CREDENTIALS?|CREDS|COOKIE"
    r"|JWT|WEBHOOK|CONNECTION_STRING|CONN_STR|NOTIFY_URL|_PWD|(^|_)(PASS|PAT|KEY|AUTH|BEARER))S?(?![A-Z])",
    re.IGNORECASE,
)
_NAMES_OF_OTHERS = re.compile(r"(TOKENS|_(FILE|PATH|DIR|HOME|SOCK|HOST|PORT|NAME|USER|TYPE))$", re.IGNORECASE)
"""`..._TOKEN_PATH` says where one is."""
_NAMES_OF_PARTS = re.compile(r"token|key|secret|pass|pwd|auth|sig|cred|code|session|jwt|sas", re.IGNORECASE)
_PARTS = re.compile(r"""(?:([\w.-]+)["']?\s*[=:]\s*["']?)?([^\s"'&;,{}\[\]]+)""")
"""Name and value of what stands in a query, a cookie, a connection string, JSON; lines of a key have no name."""
_LONG_VALUE = 16
"""Of a part: more likely a secret than a word, whatever its name."""
_ASSIGNED = re.compile(
    r"\b((?:access|auth|api|account|shared|private|secret)?[_-]?(?:access)?[_-]?(?:token|key|password|passwd|pwd|secret"
    r"|signature)=)(?!\*\*\*)[^\s&;,'\"<>)\]]{6,}",
    re.IGNORECASE,
)
"""As in a query or a connection string that stands alone; `eos_token=` is none."""
_OPTION = re.compile(r"""(?<![\w-])(--\w[\w.-]*)(?:(=)|['"],\s*|\s+)(?!\*\*\*)('[^']+'|"[^"]+"|[^\s'"-][^\s'"]*)""")
"""An option and its value, as typed or as a list of words."""
_NAMES_OF_OPTIONS = re.compile(
    r"(?:^|[_.+-]|[a-z](?=[A-Z])|api|auth|access|secret|private)(?:[Kk]ey|[Tt]oken|[Pp]assword|[Pp]asswd|[Pp]wd|[Ss]ecret)$"
)
_OTHER_OPTIONS = re.compile(
    r"(?<![a-z])(?:(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|special|start|end|stop|new|per)[_-]?token"
    r"|(?:sort|group|image|img|video|audio|text|caption|prompt|label|target|input|output|feature|column|field|dict"
    r"|model|metric|cache)[_-]?key)$",
    re.IGNORECASE,
)
"""Of a tokenizer, or what rows and files are named by: `--eos_token` and `--sort-key` are no secrets."""
_WORD = re.compile(r"[a-z]+[.,;:]?|\d+|[^'\"]{1,5}")
"""What may stand behind an option in a sentence."""
_MIN_SECRET_CHARACTERS = 6
"""A shorter value is more likely a word than a secret, and would be taken out of every line that holds it."""


def redact(text: str) -> str:
    """Return the text without tokens, credentials and query strings of addresses, and secrets of the environment.

    A secret of the environment is the value of any variable whose name says so (HF_TOKEN, SECRET_KEY_BASE), its parts,
    and, in a variable that holds an address (HTTPS_PROXY), its password and what stands in its query: as they are,
    escaped as addresses, JSON, HTML and Python do, or in base64. `token=...` and the like lose their value wherever
    they stand, and so do options such as `--api-key ...`.
    """
    text = _TOKENS_OF_OTHERS.sub("***", TOKEN.sub("hf_***", text))
    if (secrets := _compile_secrets(tuple(os.environ.items()))) is not None:
        text = secrets.sub("***", text)
    if "--" in text:
        text = _OPTION.sub(_hide_value, text)
    if "=" in text:
        text = _ASSIGNED.sub(r"\1***", text)
    if "//" in text:
        text = _QUERY.sub(r"\1", _CREDENTIALS.sub("//***@", text))
    return text


def redact_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the values of options whose names end in key, token, password or alike."""
    results, is_value = list[str](), False
    for word in words:
        name, equals, _ = word.partition("=")
        if is_value and not word.startswith("-"):
            results.append(HIDDEN)
        else:
            results.append(f"{name}={HIDDEN}" if equals and _names_secret(name) else word)
        is_value = word.startswith("-") and not equals and _names_secret(word)
    return results


def _names_secret(option: str) -> bool:
    return _NAMES_OF_OPTIONS.search(option) is not None and _OTHER_OPTIONS.search(option) is None


def _hide_value(option: re.Match[str]) -> str:
    name, equals, value = option.groups()
    is_word = not equals and _WORD.fullmatch(value)
    return option[0] if is_word or not _names_secret(name) else option[0].removesuffix(value) + HIDDEN


@functools.lru_cache(maxsize=1)
def _compile_secrets(environment: tuple[tuple[str, str], ...]) -> re.Pattern[str] | None:
    """Return what finds every secret in each of its forms, the longest first: one may be a part of another."""
    forms = set()
    for secret in _list_secrets(environment):
        quoted = urllib.parse.quote(secret, safe="")
        lower = re.sub("%..", lambda result: result[0].lower(), quoted)
        as_json = (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
        plain = {secret, quoted, lower, urllib.parse.quote_plus(secret), urllib.parse.quote(secret)}
        forms |= {re.escape(form) for form in (*plain, *as_json, repr(secret)[1:-1], html.escape(secret))}
        forms |= {f"{re.escape(core)}[A-Za-z0-9+/_=-]*" for core in _list_base64(secret.encode(errors="replace"))}
    return re.compile("|".join(sorted(forms, key=len, reverse=True))) if forms else None


def _list_base64(secret: bytes) -> Iterator[str]:
    """Yield what base64 of any text that holds the secret must hold, whatever stands before and behind it."""
    for before, num_shared in enumerate((0, 2, 3)):
        encoded = base64.b64encode(b"\0" * before + secret).decode().rstrip("=")
        core = encoded[num_shared : len(encoded) - bool((before + len(secret)) % 3)]
        yield from {core, core.translate(str.maketrans("+/", "-_"))}


def _list_secrets(environment: tuple[tuple[str, str], ...]) -> set[str]:
    """Return the values, and what a server would say of them."""
    results = set()
    for name, value in environment:
        if _is_secret(name, value):
            # Of USER:PASSWORD and of an address that is a secret, also the part that a server would repeat.
            results |= {value, value.partition("://")[2].partition("/")[2], value.rpartition(":")[2].lstrip("/")}
            results |= _list_parts(value)
        if "://" in value:
            for address in (value, *re.split(r"[\s,;]+", value)):
                for user, password in _OF_ADDRESS.findall(address):
                    results |= {password, user if len(user) >= _LONG_VALUE else ""}
            results |= _list_parts(value.partition("?")[2])
    results |= {urllib.parse.unquote(secret) for secret in results}
    return {secret for secret in results if len(secret) >= _MIN_SECRET_CHARACTERS}


def _is_secret(name: str, value: str) -> bool:
    named = _NAMES_OF_SECRETS.search(name)
    if named is None or _NAMES_OF_OTHERS.search(name):
        return False
    return named.end() == len(name) or not value.isdecimal()


def _list_parts(text: str) -> set[str]:
    """Return the values of parts with a name like a secret's, long ones, and the passwords that these encode."""
    parts = {value for name, value in _PARTS.findall(text) if _NAMES_OF_PARTS.search(name) or len(value) >= _LONG_VALUE}
    for part in list(parts):
        with contextlib.suppress(ValueError):
            parts.add(base64.b64decode(part, validate=True).decode("ascii").partition(":")[2])
    return parts


def shorten(text: str, *, limit: int = MAX_CHARACTERS) -> str:
    """Return the text, or its first and last part with the number of characters that are left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... [{len(text) - 2 * half:,} characters left out] ... {text[-half:]}"


def redact_line(text: str) -> str:
    """Return the text in one line, without secrets and without codes that a terminal obeys: somebody else wrote it."""
    line = redact(shorten(" ".join(text.split()), limit=_MOST_CHARACTERS_OF_LINE))
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)


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
