"""The sections `cells` and `nodes` of params.yaml: how the same work is spread."""

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from tasks.params.choices import list_file_names, require_one_of
from tasks.params.options import require_options
from tasks.params.section import Finite, Section


class CellParams(Section):
    """One bar of the chart: how the same work is spread."""

    strategy: str
    """How the update is computed: the name of a file in training/strategies/."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the strategy, as OPTIONS in its file names them with their defaults."""
    world_size: int = Field(ge=1, le=4096)
    """Number of ranks (processes); on CUDA one per device."""
    launcher: str = "torchrun"
    """How the ranks are started: the name of a file in tasks/ranks/launchers/."""
    num_nodes: int = Field(default=1, ge=1, le=1024)
    """Machines that the ranks are on, as many on each; with several: docs/nodes.md."""
    oversubscribe: bool = False
    """Allow more ranks than GPUs: the ranks then share devices, and the cell says nothing about scaling."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_one_of("strategy", self.strategy, list_file_names("training/strategies"))
        require_options(self.options, self.strategy)
        require_one_of("launcher", self.launcher, list_file_names("tasks/ranks/launchers"))
        if self.strategy == "single" and self.world_size != 1:
            raise ValueError(f"world_size: got {self.world_size} with strategy single; allowed: 1, or strategy ddp")
        if self.world_size % self.num_nodes:
            raise ValueError(
                f"num_nodes: got {self.num_nodes} with world_size {self.world_size}; allowed: a divisor of it, so that "
                "every node has as many ranks"
            )
        if self.num_nodes > 1 and self.launcher != "torchrun":
            raise ValueError(f"num_nodes: got {self.num_nodes} with launcher {self.launcher}; allowed: torchrun")
        return self

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each machine."""
        return self.world_size // self.num_nodes


class NodesParams(Section):
    """How the other machines of cells with several nodes come to take part; says nothing about the work."""

    rendezvous: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+:\d{1,5}$")] | None = None
    """HOST:PORT of this machine, the head, as the others reach it; null: $DDP_COMPARE_RENDEZVOUS."""
    start_command: str | None = None
    """Starts another node: `ssh host{node_rank} {command}`, say; null: the command for them is printed."""
    wait_seconds: Finite = Field(default=600.0, gt=0, le=800)
    """How long ranks wait for nodes that have not come yet."""

    @field_validator("start_command")
    @classmethod
    def _check_start_command(cls, value: str | None) -> str | None:
        if value is not None and "{command}" not in value:
            raise ValueError("must hold {command}, such as `ssh host{node_rank} {command}`")
        return value
