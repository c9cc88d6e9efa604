"""How the Hugging Face Hub is asked: every request has a time limit and every call a few tries.

Failures end in one line that holds neither a token nor a signed address.
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import TypeVar

from tasks.process.failure import ResourceError, StageError
from tasks.services import network

_Result = TypeVar("_Result")
_patience = network.Patience()


def has_token() -> bool:
    """Return True if HF_TOKEN or the token file of `hf auth login` holds a token."""
    from huggingface_hub import get_token

    return bool(get_token())


def translate_error(error: Exception, place: str) -> Exception:
    """Return the one-line failure for what the Hub or the network did, or `error` itself if it is neither."""
    from huggingface_hub.errors import FileMetadataError, OfflineModeIsEnabled

    if isinstance(error, StageError):
        return error
    if any(isinstance(cause, OfflineModeIsEnabled) for cause in network.walk_causes(error)):
        return ResourceError(f"{place}: HF_HUB_OFFLINE is set, and the local cache is not enough; unset it")
    if network.is_transient(error):
        tries = len(network.WAITS_SECONDS) + 1
        return ResourceError(
            f"{place}: the Hub could not be reached ({network.name_error(error)}, {tries} tries); check the network "
            "and run again: what has arrived is kept"
        )
    if "proxy" in str(error).lower():
        return ResourceError(
            f"{place}: the proxy of the environment cannot be used ({error}); check HTTPS_PROXY, ALL_PROXY"
        )
    if any(isinstance(cause, json.JSONDecodeError | FileMetadataError) for cause in network.walk_causes(error)):
        return ResourceError(
            f"{place}: what answers is not the Hub ({network.name_error(error)}); check network and proxy"
        )
    if network.find_status_code(error) is not None:
        return ResourceError(f"{place}: the Hub answered {network.name_error(error)}; run again later")
    return error


def bound_requests() -> None:
    """From now on, no request of this process to the Hub waits without end, whoever makes it."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks
    for event, hook in (("request", network.set_time_limits), ("response", _patience.look)):
        if hook not in hooks[event]:
            hooks[event].append(hook)


def call_hub(call: Callable[[], _Result]) -> _Result:
    """Return what `call` returns, with a few tries, each request with a time limit, and quietly.

    The library's own warnings print addresses with signatures; ours say the same without.
    """
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import disable_progress_bars
    from huggingface_hub.utils import logging as hub_logging

    def call_once() -> _Result:
        bound_requests()
        return call()

    # Xet, the Hub's storage, tries for six minutes by itself.
    os.environ.setdefault("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "2")
    hub_logging.set_verbosity_error()
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    if not sys.stderr.isatty():
        disable_progress_bars()
    return network.call_with_retries(call_once, give_up_on=OfflineModeIsEnabled)
