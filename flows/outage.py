"""Prefect records what happens here; where its server does not answer, the comparison goes on without it."""

import contextlib
import logging
from collections.abc import Iterator

import httpx

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def unless_prefect_is_gone(what: str) -> Iterator[None]:
    """Run the block; if the server does not answer, say in one line that `what` is missing there, and go on."""
    try:
        yield
    except httpx.HTTPError as error:
        logger.warning("the Prefect server does not answer (%s): %s; the comparison goes on", _reason(error), what)


def _reason(error: httpx.HTTPError) -> str:
    """Return `HTTP 503` or the kind of the error: never its text, which may hold an address with credentials."""
    return f"HTTP {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else type(error).__name__
