"""The ranks of a cell: started, followed, watched and ended; here is which code they may run."""

from collections.abc import Callable

from training.process.files import digest_code

checks: list[Callable[[], None]] = []
"""Of this process: each raises ConfigurationError unless the code on disk is what the run began with."""


def make_code_arguments() -> list[str]:
    """Return the arguments that tell ranks which code they may run: what is on disk, once it is the snapshot's.

    Ranks import it seconds after the stage has looked, and refuse anything else then.
    """
    digest = digest_code()
    for require_code in checks:
        require_code()
    return ["--code", digest]
