"""Ranks started by torchrun, on this machine, or on several with `nodes`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.ranks import launchers
from tasks.ranks.launchers import Nodes
from tasks.ranks.launchers.nodes.head import SeveralNodes
from tasks.ranks.one_machine import Launch


def start(
    config: Path,
    *,
    world_size: int,
    threads_per_rank: int,
    log_folder: Path,
    arguments: Sequence[str] = (),
    module: str = "training",
    nodes: Nodes | None = None,
) -> launchers.Launch:
    """Start the ranks on this machine, or on several; what every launcher offers under this name."""
    options: dict[str, Any] = {
        "world_size": world_size, "threads_per_rank": threads_per_rank, "log_folder": log_folder,
        "arguments": arguments, "module": module,
    }  # fmt: skip
    return Launch(config, **options) if nodes is None else SeveralNodes(config, nodes=nodes, **options)
