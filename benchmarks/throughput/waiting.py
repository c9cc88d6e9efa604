"""How long a real training waits for its data."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.throughput.groups import Setup
from tasks.ranks.one_machine import RanksHere
from training.process.files import write_json

_STEPS = 20
_TIMEOUT = 540.0


@dataclass(frozen=True, kw_only=True)
class Waited:
    """What the steps of a training recorded."""

    num_steps: int
    """Steps, the first among them, which nothing runs ahead of."""
    seconds: float
    """Of the slowest rank."""
    data_wait_seconds: float
    """Seconds in which the rank that waited longest had no data."""

    @property
    def share(self) -> float:
        """Return the share of the seconds that were spent waiting."""
        return self.data_wait_seconds / self.seconds


def waited_for_data(setup: Setup, work: Path, *, overrides: Mapping[str, Any], num_steps: int = _STEPS) -> Waited:
    """Return how long a training with its own loader waited in its first steps; it is ended after them.

    Raises RuntimeError with the ranks' last words if it does not get that far.
    """
    write_json(work / "config.json", {**setup.training(work), **overrides})
    launch = RanksHere(
        work / "config.json", world_size=setup.world_size, threads_per_rank=setup.threads, log_folder=work / "logs"
    )
    deadline = time.monotonic() + _TIMEOUT
    try:
        while launch.is_running and time.monotonic() < deadline and len(_steps(work)) < num_steps:
            time.sleep(0.1)
        steps = _steps(work)
        if len(steps) < num_steps:
            raise RuntimeError(f"{len(steps)} steps instead of {num_steps}: {launch.explain_end()}")
    finally:
        launch.stop(grace_seconds=0.0)
    return Waited(
        num_steps=len(steps),
        seconds=sum(step["seconds"] for step in steps),
        data_wait_seconds=sum(step["data_wait_seconds"] for step in steps),
    )


def _steps(work: Path) -> list[dict[str, Any]]:
    """Return the lines of the steps so far; one that is still being written is left out."""
    stream = work / "steps.jsonl"
    whole = stream.read_text().rpartition("\n")[0] if stream.exists() else ""
    lines = [json.loads(line) for line in whole.splitlines()]
    return [line for line in lines if line["event"] == "step"]
