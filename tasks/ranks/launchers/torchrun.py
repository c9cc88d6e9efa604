"""Ranks started by torchrun, on this machine, or on several with `nodes`."""

from pathlib import Path
from typing import Any

from tasks.ranks import launchers
from tasks.ranks.launchers import Nodes
from tasks.ranks.one_machine import RanksHere


def start(config: Path, *, nodes: Nodes | None = None, **options: Any) -> launchers.Launch:
    """Start the ranks on this machine, or on several: what every launcher offers, with the options of Launcher."""
    if nodes is None:
        return RanksHere(config, **options)
    # It needs more than is installed where one GPU is measured.
    from tasks.ranks.launchers.nodes.head import SeveralNodes

    return SeveralNodes(config, nodes=nodes, **options)
