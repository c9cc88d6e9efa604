"""Prefect records what happens here; without its server, or where that does not answer, the comparison goes on."""

import contextlib
import logging
from collections.abc import Iterator

import httpx
from prefect.context import FlowRunContext

logger = logging.getLogger(__name__)


def is_recorded() -> bool:
    """Return whether this is a run of a flow: without a server there is none, and the stages run all the same."""
    return FlowRunContext.get() is not None


@contextlib.contextmanager
def tolerate_outage(what: str) -> Iterator[list[httpx.HTTPError]]:
    """Run the block; if the server does not answer, say in one line what that means, and go on.

    Yields a list that then holds the error.
    """
    errors: list[httpx.HTTPError] = []
    try:
        yield errors
    except httpx.HTTPError as error:
        errors.append(error)
        # Never its text, which may hold an address with credentials.
        logger.warning(
            "the Prefect server does not answer (%s): %s; the comparison goes on",
            f"HTTP {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else type(error).__name__,
            what,
        )
