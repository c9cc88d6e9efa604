"""How the Hugging Face Hub is asked: every request has a time limit and every call a few tries.

Failures end in one line that holds neither a token nor a signed address.
"""

import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ddp_audit.process.redaction import redact_line
from tasks.process.failure import ResourceError, StageError
from training.process.heartbeat import call_every

if TYPE_CHECKING:
    import httpx2


_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

WAITS_SECONDS = (1.0, 2.0, 4.0)
"""Pauses between the tries of one call."""
_LIMITS_SECONDS = {"connect": 10.0, "read": 120.0, "write": 120.0, "pool": 120.0}
_MOST_SECONDS_TO_WAIT = 90.0
"""Of all pauses together that a server asks for while a process runs."""
_SECONDS_BETWEEN_WORDS = 10.0
"""Of a transfer that takes long."""
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED_STATUS = frozenset({400, 413, 422})
"""The same request is refused whenever it comes."""
_MOST_CHARACTERS_OF_REASON = 200


def has_token() -> bool:
    """Return True if HF_TOKEN or the token file of `hf auth login` holds a token."""
    from huggingface_hub import get_token

    return bool(get_token())


def translate_error(error: Exception, place: str) -> Exception:
    """Return the one-line failure for what the Hub or the network did, or `error` itself if it is neither."""
    from huggingface_hub.errors import FileMetadataError, OfflineModeIsEnabled

    if isinstance(error, StageError):
        return error
    if is_caused_by(error, OfflineModeIsEnabled):
        return ResourceError(f"{place}: HF_HUB_OFFLINE is set, and the local cache is not enough; unset it")
    if is_transient(error):
        tries = len(WAITS_SECONDS) + 1
        return ResourceError(
            f"{place}: the Hub could not be reached ({name_error(error)}, {tries} tries); check the network "
            "and run again: what has arrived is kept"
        )
    if "proxy" in str(error).lower():
        return ResourceError(
            f"{place}: the proxy of the environment cannot be used ({error}); check HTTPS_PROXY, ALL_PROXY"
        )
    if is_caused_by(error, json.JSONDecodeError, FileMetadataError):
        return ResourceError(f"{place}: what answers is not the Hub ({name_error(error)}); check network and proxy")
    if (status := find_status_code(error)) is not None:
        remedy = "change what it refuses" if status in _REFUSED_STATUS else "run again later"
        return ResourceError(f"{place}: the Hub answered {quote_answer(error)}; {remedy}")
    return error


def bound_requests() -> None:
    """From now on, no request of this process to the Hub waits without end, whoever makes it."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks
    for event, hook in (("request", set_time_limits), ("response", _patience.look)):
        if hook not in hooks[event]:
            hooks[event].append(hook)


def call_hub(call: Callable[[], _Result]) -> _Result:
    """Return what `call` returns, quietly, each request with a time limit.

    Network errors, 429 and 5xx get a few tries more, with growing pauses. The library's own warnings print addresses
    with signatures; ours say the same without.
    """
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import disable_progress_bars
    from huggingface_hub.utils import logging as hub_logging

    # Xet, the Hub's storage, tries for six minutes by itself.
    os.environ.setdefault("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "2")
    hub_logging.set_verbosity_error()
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    if not sys.stderr.isatty():
        disable_progress_bars()
    for wait in (*WAITS_SECONDS, None):
        try:
            bound_requests()
            return call()
        except Exception as error:
            if wait is None or is_caused_by(error, OfflineModeIsEnabled) or not is_transient(error):
                raise
            _log.info("network: %s; trying again in %.0f s", name_error(error), wait)
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def log_while_running(what: str) -> contextlib.AbstractContextManager[None]:
    """Log a line every few seconds for as long as the block runs, so that a long transfer is not silent."""
    started = time.perf_counter()

    def say() -> None:
        _log.info("%s: %.0f s so far", what, time.perf_counter() - started)

    return call_every(_SECONDS_BETWEEN_WORDS, say, name="transfer")


class Patience:
    """Looks at every answer of a server: says how long it asks us to wait, and ends what would take too long."""

    def __init__(self) -> None:
        self._left_seconds = _MOST_SECONDS_TO_WAIT

    def look(self, response: "httpx2.Response") -> None:
        """Raise ResourceError where the server asks for too long a pause, or a web page answers in its place."""
        host = response.request.url.host
        kind, path = response.headers.get("content-type", ""), response.request.url.path
        if response.status_code == 200 and kind.startswith("text/html") and not path.endswith((".html", ".htm")):
            raise ResourceError(
                f"{host}: a web page answers where data was asked for, as the login page of a network or proxy does; "
                "open it in a browser and sign in, or check HTTPS_PROXY and HF_ENDPOINT, then run again"
            )
        # What the library that calls it would wait.
        limit = re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", response.headers.get("ratelimit", ""))
        said = limit[1] if limit else response.headers.get("retry-after", "")
        asked = int(said[:12]) if said.isdecimal() else None
        if response.status_code not in _TRANSIENT_STATUS or not asked:
            return
        if asked > self._left_seconds:
            raise ResourceError(
                f"{host}: HTTP {response.status_code}, and it asks to wait {asked:,} s; allowed: "
                f"{_MOST_SECONDS_TO_WAIT:.0f} s in all; run again then: what has arrived is kept"
            )
        self._left_seconds -= asked
        _log.warning("%s: HTTP %d; waiting %d s, as it asks", host, response.status_code, asked)


_patience = Patience()


def is_transient(error: BaseException) -> bool:
    """Return True if the network or an overloaded server is to blame, so that a later try may succeed."""
    import httpx2

    if (status := find_status_code(error)) is not None:
        return status in _TRANSIENT_STATUS
    return is_caused_by(error, httpx2.TransportError, ConnectionError, TimeoutError)


def name_error(error: BaseException) -> str:
    """Return `HTTP 503` or the class of the first cause: never its text, which may hold a signed address."""
    status = find_status_code(error)
    return f"HTTP {status}" if status is not None else type(list(_walk_causes(error))[-1]).__name__


def quote_answer(error: BaseException) -> str:
    """Return `HTTP 403: ` and the server's own reason where it gives one, without secrets and in one short line."""
    reasons = [str(said) for cause in _walk_causes(error) if (said := getattr(cause, "server_message", None))]
    return ": ".join([name_error(error), *(redact_line(said)[:_MOST_CHARACTERS_OF_REASON] for said in reasons[:1])])


def find_status_code(error: BaseException) -> int | None:
    """Return the HTTP status of the answer that caused the error, or None if there was no answer."""
    for cause in _walk_causes(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def is_caused_by(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return whether it, or what caused it, is of one of these kinds."""
    return any(isinstance(cause, kinds) for cause in _walk_causes(error))


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what caused it: libraries wrap the server's answer in errors of their own."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        current = current.__cause__ or current.__context__


def set_time_limits(request: "httpx2.Request") -> None:
    """Give the request the time limits that it does not have: a silent server would hold a stage for ever."""
    asked = request.extensions.get("timeout") or {}
    request.extensions["timeout"] = {
        phase: limit if asked.get(phase) is None else asked[phase] for phase, limit in _LIMITS_SECONDS.items()
    }
