"""The sections `cells` and `ray` of params.yaml: how the same work is spread."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from tasks.params.choices import list_file_names, read_constant, require_one_of, require_package
from tasks.params.section import Finite, Section
from tasks.params.train import AUTO, TrainParams
from training.combinations import SYNC_BATCH, find_conflict, list_asked, split_key
from training.registry import list_strategies
from training.strategies import count_shares, find_options, find_traits

if TYPE_CHECKING:
    from tasks.params.sources import ModelParams


class CellParams(Section):
    """One bar of the chart: how the same work is spread."""

    strategy: str
    """How the update is computed: the name of a folder in training/strategies/."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the strategy, as OPTIONS in its options.py names them with their defaults."""
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
        require_one_of("strategy", self.strategy, list(list_strategies()))
        require_package("strategy", self.strategy, f"training/strategies/{self.strategy}/options.py")
        known = find_options(self.strategy).OPTIONS
        for name, value in self.options.items():
            require_one_of("options", name, sorted(known))
            default = known[name]
            if isinstance(default, tuple):
                is_right = (type(value), value) in [(type(item), item) for item in default]
                allowed, default = ", ".join(map(str, default)), default[0]
            elif isinstance(default, bool):
                is_right, allowed = isinstance(value, bool), "true or false"
            else:
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                is_right, allowed = (is_number and 0 < value < math.inf) or value is default, "a number above 0"
            if not is_right:
                raise ValueError(f"options.{name}: got {value!r}; allowed: {allowed} (default {default})")
        require_one_of("launcher", self.launcher, list_file_names("tasks/ranks/launchers"))
        require_package("launcher", self.launcher, f"tasks/ranks/launchers/{self.launcher}.py")
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
    def shares(self) -> int:
        """Into how many shares the micro-batches of a step are dealt."""
        return count_shares(self.strategy, self.world_size, self.options)

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


_ADAPTER, _FOUR_BIT = "training/model/adapter.py", "training/model/four_bit.py"


def require_fit(cell: str, spread: CellParams, train: TrainParams, workload: str, *, normalises: bool) -> None:
    """Raise ValueError where the cell's strategy does not go with the work, or with so many ranks.

    `normalises`: whether the model has batch normalisation over all ranks.
    """
    of_cell = f"cells.{cell}."
    if wrong := find_traits(spread.strategy).explain_unfit(spread.options, world_size=spread.world_size):
        raise ValueError(of_cell + wrong)
    asked = list_asked(train, spread.options, of_train="train.", of_cell=of_cell)
    if normalises:
        asked[SYNC_BATCH] = split_key(SYNC_BATCH, "model.")
    if wrong := find_conflict(asked, strategy=spread.strategy, workload=workload, of_cell=of_cell):
        raise ValueError(wrong)


def require_same_statistics(model: "ModelParams", train: TrainParams, cells: Mapping[str, CellParams]) -> None:
    """Raise ValueError, with the remedy, where batch normalisation would not be over the same rows in all cells.

    What is normalised together is part of the work: `micro_batch_size` x the shares of the rows.
    """
    if model.norm != "sync_batch":
        for name, cell in cells.items():
            if cell.micro_batch_size is not None:
                raise ValueError(
                    f"cells.{name}.micro_batch_size: got {cell.micro_batch_size} without model.norm sync_batch; "
                    "allowed: null, train.micro_batch_size is every cell's"
                )
        return
    if train.micro_batch_size == AUTO:
        raise ValueError(
            "train.micro_batch_size: got auto with model.norm sync_batch, where it is work; allowed: a number"
        )
    together = {name: cell.shares * (cell.micro_batch_size or train.micro_batch_size) for name, cell in cells.items()}
    first, wanted = next(iter(together.items()))
    for name, rows in together.items():
        shares = cells[name].world_size
        if rows != wanted:
            remedy = (
                f"cells.{name}.micro_batch_size: {wanted // shares}"
                if wanted % shares == 0
                else f"a micro_batch_size in {first} such that {shares} ranks can share its rows"
            )
            raise ValueError(
                f"model.norm: got sync_batch, and cells.{name} would normalise {rows} rows together "
                f"({rows // shares} on each of {shares} ranks), {first} {wanted}; allowed: as many in all cells, so "
                f"{remedy}"
            )


def require_installed_adapter(train: TrainParams) -> None:
    """Raise ValueError, with the remedy, where a package is missing."""
    if train.adapter is not None:
        require_package("train.adapter", train.adapter.kind, _ADAPTER)
        if train.adapter.base is not None:
            require_package("train.adapter.base", train.adapter.base, _FOUR_BIT)


def list_packages(strategy: str, adapter: Mapping[str, Any] | None) -> list[str]:
    """Return PACKAGE of the strategy's options, of the adapter where one is trained, and of what rounds its base.

    With another version of one it is another training. Most cells have none of them.
    """
    files = [f"training/strategies/{strategy}/options.py", *[_ADAPTER] * bool(adapter)]
    files += [_FOUR_BIT] * bool(adapter and adapter["base"])
    return [package for file in files if (package := read_constant(file, "PACKAGE")) is not None]
