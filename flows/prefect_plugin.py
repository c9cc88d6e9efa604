"""Makes `prefect deployment run ddp-compare` mean `ddp-compare/ddp-compare`, and `rebench` `ddp-compare/rebench`.

Prefect's command line wants FLOW/DEPLOYMENT, and our server credentials. It loads this module as a plugin, which
prefect.toml allows.
"""

import difflib
import os
import sys
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import PurePath

from prefect.plugins import HookContext, SetupResult, register_hook

from ddp_audit.process.redaction import redact
from flows.server import read_served_environment
from tasks.process.failure import ExitCode
from tasks.process.proxies import bypass_proxies_on_loopback, bypass_proxies_to

_FLOW = "ddp-compare"
_NAMES = ("ddp-compare", "rebench")
_VERBS = {"run", "inspect", "delete", "schedule"}
_SECONDS_TO_ANSWER = 5.0


@register_hook
def setup_environment(*, ctx: HookContext) -> SetupResult | None:
    """Rewrite a bare name of ours in the command line that is about to be read, and say where `make serve` runs.

    Ends the process in one line if the command is about our deployments and no server answers.
    """
    bypass_proxies_on_loopback()
    meant = expand_deployment_name(sys.argv)
    served = {} if "PREFECT_API_URL" in os.environ else read_served_environment()
    url = served.get("PREFECT_API_URL") or ctx.api_url or ""
    bypass_proxies_to(url)
    if meant != sys.argv and not _is_reachable(url, has_credentials=bool(served) or "PREFECT_API_URL" in os.environ):
        sys.stderr.write(
            f"ddp-compare: no Prefect server of this folder answers at {redact(url)}; type `make serve` in another "
            "terminal, then this again\n"
        )
        sys.exit(ExitCode.RESOURCES)
    sys.argv[:] = meant
    return SetupResult(env=served) if served else None


def _is_reachable(url: str, *, has_credentials: bool) -> bool:
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/version", timeout=_SECONDS_TO_ANSWER).close()
    except urllib.error.HTTPError as error:
        return has_credentials or error.code != HTTPStatus.UNAUTHORIZED  # else that of another folder or user
    except (OSError, ValueError):
        return False
    return True


def expand_deployment_name(arguments: list[str]) -> list[str]:
    """Return the arguments with a bare name of ours as FLOW/DEPLOYMENT where the command names a deployment.

    Ends the process in one line where a bare name is nearly one of ours.
    """
    words = [position for position, word in enumerate(arguments) if position and not word.startswith("-")]
    verbs = [arguments[position] for position in words]
    num_verbs = 3 if verbs[1:2] == ["schedule"] else 2
    is_prefect = bool(arguments) and PurePath(arguments[0]).stem in ("prefect", "__main__")
    if not is_prefect or verbs[:1] != ["deployment"] or len(verbs) <= num_verbs or verbs[1] not in _VERBS:
        return arguments
    name, named = verbs[num_verbs], words[num_verbs]
    if name not in _NAMES:
        # A whole FLOW/DEPLOYMENT, an option's value, or another's.
        is_bare = "/" not in name and not arguments[named - 1].startswith("-")
        if is_bare and (near := difflib.get_close_matches(name, _NAMES, n=1)):
            sys.stderr.write(
                f"ddp-compare: got {name[:80]!r} (did you mean {near[0]}?); allowed: {', '.join(_NAMES)}\n"
            )
            sys.exit(ExitCode.CONFIGURATION)
        return arguments
    return [*arguments[:named], f"{_FLOW}/{arguments[named]}", *arguments[named + 1 :]]
