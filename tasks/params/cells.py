"""The sections `cells` and `ray` of params.yaml: how the same work is spread."""

import importlib.util
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from tasks.params.choices import list_file_names, list_takers, read_constant, require_installed, require_one_of
from tasks.params.section import Finite, Section
from tasks.params.train import AUTO, TrainParams
from tasks.strategies import count_shares, find_profile, get_exchange_dtype

if TYPE_CHECKING:
    from tasks.params.sources import ModelParams


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


def read_options(strategy: str) -> dict[str, Any]:
    """Return the options of a strategy with their defaults: the literal OPTIONS in its file, without importing it.

    A tuple is a choice, of which the first is the default.
    """
    options: dict[str, Any] = read_constant(f"training/strategies/{strategy}.py", "OPTIONS") or {}
    return options


def require_options(options: dict[str, Any], strategy: str) -> None:
    """Raise ValueError unless the strategy has these options, each one of its choices or of its default's kind."""
    known = read_options(strategy)
    for name, value in options.items():
        require_one_of("options", name, sorted(known))
        default = known[name]
        if isinstance(default, tuple):
            is_right = any(value == one and type(value) is type(one) for one in default)
            allowed, default = ", ".join(map(str, default)), default[0]
        elif isinstance(default, bool):
            is_right, allowed = isinstance(value, bool), "true or false"
        else:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_right, allowed = (is_number and 0 < value < math.inf) or value is default, "a number above 0"
        if not is_right:
            raise ValueError(f"options.{name}: got {value!r}; allowed: {allowed} (default {default})")
    find_profile(strategy).require(options)


def require_fit(cell: str, spread: CellParams, train: TrainParams, *, unit: str) -> None:
    """Raise ValueError where the cell's strategy cannot do the work, which counts in `unit`, on so many ranks."""
    strategy, options = spread.strategy, spread.options
    if wrong := find_profile(strategy).explain_unfit(options, world_size=spread.world_size, unit=unit):
        raise ValueError(f"cells.{cell}.{wrong}")
    if train.eval_every_steps and read_constant(f"training/strategies/{strategy}.py", "EVALUATES") is False:
        raise ValueError(
            f"train.eval_every_steps: got {train.eval_every_steps} with cells.{cell}.strategy {strategy}, in whose "
            "stages no rank has a whole model to look with; allowed: 0, every model is evaluated after each epoch "
            "anyway"
        )
    if train.exact and strategy not in (takers := list_takers("strategies", "IS_EXACT")):
        raise ValueError(
            f"cells.{cell}.strategy: got {strategy} with train.exact; allowed: exact: false, or strategy "
            f"{' or '.join(takers)}"
        )
    if train.exact and (dtype := get_exchange_dtype(strategy, options)) != "none":
        raise ValueError(
            f"cells.{cell}.options.gradient_hook: got {dtype} with train.exact; allowed: exact: false, or none"
        )


def count_statistics_rows(model: "ModelParams", train: TrainParams, cell: CellParams) -> int:
    """Return how many rows a cell normalises together, all ranks' of one forward; 0: none, each row by itself."""
    return cell.shares * (cell.micro_batch_size or train.micro_batch_size) if model.norm == "sync_batch" else 0


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
    if train.exact:
        raise ValueError(
            "model.norm: got sync_batch with train.exact, whose bits it cannot keep; allowed: exact: false, or group"
        )
    if train.micro_batch_size == AUTO:
        raise ValueError(
            "train.micro_batch_size: got auto with model.norm sync_batch, where it is work; allowed: a number"
        )
    first, takers = next(iter(cells)), list_takers("strategies", "SYNCS_STATISTICS")
    wanted = count_statistics_rows(model, train, cells[first])
    for name, cell in cells.items():
        if cell.strategy not in takers:
            raise ValueError(
                f"model.norm: got sync_batch with cells.{name}.strategy {cell.strategy}; allowed: group, or the "
                f"strategy {' or '.join(takers)}"
            )
        rows, shares = count_statistics_rows(model, train, cell), cell.world_size
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


def require_fit_for_adapter(train: TrainParams, workload: str, cells: Mapping[str, CellParams]) -> None:
    """Raise ValueError, with the remedy, where a package is missing, or workload or a strategy takes no adapter."""
    if (adapter := train.adapter) is None:
        return
    for key, package in (("", "peft"), (".base", "bitsandbytes"))[: 1 if adapter.base is None else 2]:
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"train.adapter{key}: got {adapter.base if key else adapter.kind}, and the package {package} is not "
                "installed; `make extras` installs it"
            )
    if adapter.base is not None and train.compile:
        raise ValueError(
            f"train.compile: got true with train.adapter.base {adapter.base}; allowed: false, or base null"
        )
    if workload not in (takers := list_takers("workloads", "TAKES_ADAPTERS")):
        raise ValueError(
            f"train.adapter: got lora with workload {workload}, whose head has to be trained whole; allowed: null, or "
            f"the workload {' or '.join(takers)}"
        )
    takers = list_takers("strategies", "TAKES_ADAPTERS")
    for name, cell in cells.items():
        if cell.strategy not in takers:
            raise ValueError(
                f"train.adapter: got lora with cells.{name}.strategy {cell.strategy}, which takes none; allowed: null, "
                f"or the strategy {' or '.join(takers)}"
            )


def list_packages(strategy: str, adapter: Mapping[str, Any] | None) -> list[str]:
    """Return PACKAGE of the strategy's file, of the adapter's where one is trained, and of what rounds its base.

    With another version of one it is another training. Most cells have none of them.
    """
    files = [f"training/strategies/{strategy}.py", *[_ADAPTER] * bool(adapter)]
    files += [_FOUR_BIT] * bool(adapter and adapter["base"])
    return [package for file in files if (package := read_constant(file, "PACKAGE")) is not None]
