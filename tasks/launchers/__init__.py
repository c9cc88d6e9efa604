"""How ranks are started: one file per launcher, found by its name in params.yaml.

Each offers `start(config, world_size=, threads_per_rank=, log_folder=, arguments=)`, which returns the running
`Launch`; the arguments go to every rank: `is_running`, `stop(grace_seconds=)`, `exit_code()`, `explanation()`. One that
can start ranks on several machines takes `nodes=` as well.
"""

from dataclasses import dataclass

NODES_FILE = "nodes.json"
"""In the work folder of ranks that were on several machines: what each of these is."""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The machines that a cell's ranks are on, where there are several; this one is the head, node 0."""

    num_nodes: int
    """Machines, the head among them."""
    rendezvous: str
    """HOST:PORT of the head, as the others reach it."""
    start_command: str | None
    """Starts another node, with {node_rank} and {command}; None: people do."""
    wait_seconds: float
    """How long to wait for nodes that have not come yet."""
    silence_seconds: float
    """A node from which nothing comes for so long is lost."""
