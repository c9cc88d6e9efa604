"""Ranks of a benchmark's own, started as those of a training are, and waited for."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

from tasks.ranks.launchers.torchrun import RanksHere


def run_to_end(
    config: Path,
    *,
    world_size: int,
    threads: int = 1,
    module: str = "training",
    arguments: Sequence[str] = (),
    most_seconds: float = math.inf,
) -> None:
    """Have every rank run `python -m module --config config *arguments`; their logs go beside the config.

    Raises RuntimeError with the last words of the ranks if they do not end well, or not in time.
    """
    launch = RanksHere(
        config, world_size=world_size, threads_per_rank=threads, log_folder=config.parent / "logs",
        arguments=arguments, module=module,
    )  # fmt: skip
    deadline = time.monotonic() + most_seconds
    try:
        while launch.is_running and time.monotonic() < deadline:
            time.sleep(0.1)
        if launch.is_running or launch.exit_code() != 0:
            raise RuntimeError(f"the ranks of {module} did not end well: {launch.explain_end()}")
    finally:
        launch.stop(grace_seconds=0.0)
