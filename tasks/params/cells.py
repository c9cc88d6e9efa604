"""The sections `cells` and `ray` of params.yaml: how the same work is spread."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from tasks.params.choices import list_file_names, require_installed, require_one_of
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
    """Machines that the ranks are on, as many on each; with several: docs/ray.md."""
    oversubscribe: bool = False
    """Allow more ranks than GPUs: the ranks then share devices, and the cell says nothing about scaling."""
    micro_batch_size: int | None = Field(default=None, ge=1, le=1_000_000)
    """Samples per forward of one rank of this cell, with `model.norm: sync_batch` alone: so that all ranks of each cell
    have as many rows at once. null: train.micro_batch_size."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_one_of("strategy", self.strategy, list_file_names("training/strategies"))
        require_installed("strategy", self.strategy, "training/strategies")
        require_options(self.options, self.strategy)
        require_one_of("launcher", self.launcher, list_file_names("tasks/ranks/launchers"))
        require_installed("launcher", self.launcher, "tasks/ranks/launchers")
        if self.strategy == "single" and self.world_size != 1:
            raise ValueError(f"world_size: got {self.world_size} with strategy single; allowed: 1, or strategy ddp")
        if self.world_size % self.num_nodes:
            raise ValueError(
                f"num_nodes: got {self.num_nodes} with world_size {self.world_size}; allowed: a divisor of it, so that "
                "every node has as many ranks"
            )
        if self.num_nodes > 1 and self.launcher == "torchrun":
            raise ValueError(f"num_nodes: got {self.num_nodes} with launcher torchrun; allowed: launcher ray")
        return self

    @property
    def spread(self) -> dict[str, Any]:
        """Return all but what stands with the work: how an update is spread, whatever it is an update of."""
        return self.model_dump(exclude={"micro_batch_size"})

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each machine."""
        return self.world_size // self.num_nodes


class RayParams(Section):
    """The Ray cluster that cells with `launcher: ray` are started on; says nothing about the work."""

    address: Annotated[str, Field(pattern=r"^(local|auto|[A-Za-z0-9.-]+:\d{1,5})$")] = "local"
    """`local`: one of this machine alone, for as long as a stage runs; `auto`: the one that this machine is a node of;
    HOST:PORT of the head of that."""
    wait_seconds: Finite = Field(default=600.0, gt=0, le=800)
    """How long ranks wait for machines that are not in the cluster yet."""
