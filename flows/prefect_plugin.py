"""Makes `prefect deployment run ddp-compare` mean `ddp-compare/ddp-compare`, and `rebench` `ddp-compare/rebench`.

Prefect's command line wants FLOW/DEPLOYMENT. It loads this module as a plugin, which prefect.toml allows.
"""

import sys
from pathlib import PurePath

from prefect.plugins import HookContext, register_hook

_FLOW = "ddp-compare"
_NAMES = ("ddp-compare", "rebench")
_VERBS = {"run", "inspect", "delete"}


@register_hook
def setup_environment(*, ctx: HookContext) -> None:
    """Rewrite a bare name of ours in the command line that is about to be read, and nothing else."""
    sys.argv[:] = with_full_name(sys.argv)


def with_full_name(arguments: list[str]) -> list[str]:
    """Return the arguments with a bare name of ours as FLOW/DEPLOYMENT where the command names a deployment."""
    if not arguments or PurePath(arguments[0]).stem not in ("prefect", "__main__"):
        return arguments
    words = [position for position, word in enumerate(arguments) if position and not word.startswith("-")]
    verbs = [arguments[position] for position in words]
    if verbs[:1] != ["deployment"]:
        return arguments
    num_verbs = 3 if verbs[1:2] == ["schedule"] else 2
    if num_verbs == 2 and verbs[1:2] and verbs[1] not in _VERBS:
        return arguments
    if len(verbs) <= num_verbs or verbs[num_verbs] not in _NAMES:
        return arguments
    named = words[num_verbs]
    return [*arguments[:named], f"{_FLOW}/{arguments[named]}", *arguments[named + 1 :]]
