"""Ranks started by torchrun, on this machine."""

from pathlib import Path
from typing import Any

from tasks.ranks import launchers
from tasks.ranks.launchers import Nodes
from tasks.ranks.one_machine import RanksHere


def start(config: Path, *, nodes: Nodes | None = None, **options: Any) -> launchers.Launch:
    """Start the ranks: what every launcher offers, with the options of Launcher; it knows this machine alone."""
    assert nodes is None, "ranks on this machine only"
    return RanksHere(config, **options)
