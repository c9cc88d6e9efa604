"""The section `train.adapter` of params.yaml: what is trained in place of all weights, and where that is possible."""

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from tasks.params.choices import list_file_names, read_constant
from tasks.params.section import Finite, Section

if TYPE_CHECKING:  # what a stage knows of `train` alone needs no strategy
    from tasks.params.cells import CellParams


class LoraParams(Section):
    """Low-rank factors beside linear layers (Hu et al. 2021), put there by peft, which `make extras` installs."""

    kind: Literal["lora"] = "lora"
    """The only one."""
    rank: int = Field(ge=1, le=1024)
    """Inner size of every layer's two factors."""
    alpha: Finite = Field(gt=0, le=4096)
    """What the factors' product is multiplied by, times the rank: alpha / rank is its scale."""
    targets: Literal["all-linear"] | list[str] = "all-linear"
    """Last parts of the names of the linear layers that get factors, as the model has them; all-linear: every one but
    the head."""
    base: Literal["nf4"] | None = None
    """nf4: every linear layer's weight but the head's waits in 4 bits, rounded by bitsandbytes; null: in fp32.

    Rounded weights are another model: it is the start of every cell, and what the factors are merged into.
    """

    @field_validator("targets", mode="before")
    @classmethod
    def _check_targets(cls, value: Any) -> Any:
        is_list = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
        if value != "all-linear" and not (is_list and value and len(set(value)) == len(value)):
            raise ValueError(
                "allowed: all-linear, or a list of different names, at least one, such as [q_proj, v_proj]"
            )
        return value


def require_fit_for_adapter(
    adapter: LoraParams, workload: str, cells: Mapping[str, "CellParams"], *, compiles: bool
) -> None:
    """Raise ValueError, with the remedy, where a package is missing, or workload or a strategy takes no adapter."""
    if importlib.util.find_spec("peft") is None:
        raise ValueError("train.adapter: got lora, and the package peft is not installed; `make extras` installs it")
    if adapter.base is not None and importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError(
            f"train.adapter.base: got {adapter.base}, and the package bitsandbytes is not installed; `make extras` "
            "installs it"
        )
    if adapter.base is not None and compiles:
        raise ValueError(
            f"train.compile: got true with train.adapter.base {adapter.base}; allowed: false, or base null"
        )
    if not _takes_adapters("workloads", workload):
        allowed = _list_takers("workloads")
        raise ValueError(
            f"train.adapter: got lora with workload {workload}, whose head has to be trained whole; allowed: null, or "
            f"the workload {allowed}"
        )
    for name, cell in cells.items():
        if not _takes_adapters("strategies", cell.strategy):
            raise ValueError(
                f"train.adapter: got lora with cells.{name}.strategy {cell.strategy}, which takes none; allowed: null, "
                f"or the strategy {_list_takers('strategies')}"
            )


def _takes_adapters(kind: str, name: str) -> bool:
    return bool(read_constant(f"training/{kind}/{name}.py", "TAKES_ADAPTERS"))


def _list_takers(kind: str) -> str:
    return " or ".join(name for name in list_file_names(f"training/{kind}") if _takes_adapters(kind, name))
