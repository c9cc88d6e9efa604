"""The loop as it was published, in fp32 as it was run, whatever the precision of the others."""

from benchmarks.throughput.peers import published


def settings(job):
    """Return the one way it was run."""
    return [{**setting, "precision": "fp32"} for setting in published.settings(job)]


run = published.run
