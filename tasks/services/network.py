"""A few tries for calls over the network, and what went wrong in words that give nothing away."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import httpx2

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

WAITS_SECONDS = (1.0, 2.0, 4.0)
"""Pauses between the tries of one call."""
_LIMITS_SECONDS = {"connect": 10.0, "read": 120.0, "write": 120.0, "pool": 120.0}
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


def with_retries(call: Callable[[], _Result], *, give_up_on: type[Exception]) -> _Result:
    """Return what `call` returns; network errors, 429 and 5xx get a few tries more, with growing pauses.

    An error that is, or was caused by, `give_up_on` gets none.
    """
    for wait in (*WAITS_SECONDS, None):
        try:
            return call()
        except Exception as error:
            is_final = any(isinstance(cause, give_up_on) for cause in causes(error))
            if wait is None or is_final or not is_transient(error):
                raise
            _log.info("network: %s; trying again in %.0f s", reason(error), wait)
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


@contextlib.contextmanager
def saying_that_it_runs(what: str, *, every_seconds: float = 10.0) -> Iterator[None]:
    """Log a line every few seconds for as long as the block runs, so that a long transfer is not silent."""
    is_over = threading.Event()
    started = time.perf_counter()

    def say() -> None:
        while not is_over.wait(every_seconds):
            _log.info("%s: %.0f s so far", what, time.perf_counter() - started)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def is_transient(error: BaseException) -> bool:
    """Return True if the network or an overloaded server is to blame, so that a later try may succeed."""
    import httpx2

    status = status_code(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    kinds = (httpx2.TransportError, ConnectionError, TimeoutError)
    return any(isinstance(cause, kinds) for cause in causes(error))


def reason(error: BaseException) -> str:
    """Return `HTTP 503` or the class of the first cause: never its text, which may hold a signed address."""
    status = status_code(error)
    return f"HTTP {status}" if status is not None else type(list(causes(error))[-1]).__name__


def status_code(error: BaseException) -> int | None:
    """Return the HTTP status of the answer that caused the error, or None if there was no answer."""
    for cause in causes(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
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
