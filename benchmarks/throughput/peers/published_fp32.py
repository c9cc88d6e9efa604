"""The loop as it was published, in fp32 as it was run, whatever the precision of the others."""

from typing import Any

from benchmarks.throughput.job import Job
from benchmarks.throughput.peers import published
from benchmarks.throughput.turns import Turns


def settings(job: Job) -> list[dict[str, Any]]:
    """Return the one way it was run."""
    return [{**setting, "precision": "fp32"} for setting in published.settings(job)]


def run(job: Job, turns: Turns) -> None:
    """Run blocks until nobody asks."""
    published.run(job, turns)
