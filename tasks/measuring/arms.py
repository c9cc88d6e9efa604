"""What is timed against what: the cells as they are trained, and counterfactuals of them with one thing left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tasks.records.blocks import Kind
from tasks.records.measurement import WRAPPED


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One thing that is timed, in blocks."""

    name: str
    """Name, unique within a comparison."""
    cell: str
    """The cell whose ranks run it."""
    variant: Mapping[str, Any] = field(default_factory=dict)
    """training.probing.variants.Variant."""
    data: str = "loader"
    """Where the micro-batches come from: loader, host or device."""
    part: str = "step"
    """Which part of a step: step or update."""
    is_alone: bool = False
    """Whether the first rank runs while the others stand still: the baseline's device is its own."""
    kind: Kind = "as trained"
    """What its blocks are held to (tasks/records/blocks.py)."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What the arms of a cell depend on."""

    name: str
    """Name of the cell."""
    strategy: str
    """How the update is computed."""
    world_size: int
    """Number of ranks."""
    global_batch_size: int
    """Samples per optimizer step, all ranks together."""
    num_nodes: int = 1
    """Machines that the ranks are on, as many on each."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrainingConfig in which its measured step differs from the trained one: the batch, in weak scaling."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of its strategy."""


def make_trained_arm(cell: Cell) -> Arm:
    """Return the arm of the cell's own step."""
    return Arm(name=cell.name, cell=cell.name, variant=_make_variant(cell))


def make_wrapped_arm(baseline: Cell) -> Arm | None:
    """Return the arm of the baseline inside a DDP wrapper; None if it has one anyway."""
    if baseline.strategy != "single":
        return None
    variant = _make_variant(baseline, strategy="ddp")
    return Arm(name=baseline.name + WRAPPED, cell=baseline.name, variant=variant, kind="wrapped")


def make_tuned_arms(baseline: Cell, *, micro_batch_size: int | None, num_threads: int | None) -> list[Arm]:
    """Return the baseline as one process may be faster: without a wrapper, with larger micro-batches and no layer run
    again, and with so many threads; None: that is nothing else."""
    results, name = list[Arm](), baseline.name

    def add(title: str, kind: Kind, overrides: Mapping[str, Any], **changes: Any) -> None:
        variant = {**changes, "overrides": {**baseline.overrides, **overrides}}
        results.append(Arm(name=f"{name} {title}", cell=name, kind=kind, variant=variant))

    if baseline.strategy != "single":
        add("as a plain process", "tuned", {}, strategy="single")
    if micro_batch_size is not None:
        overrides = {"micro_batch_size": micro_batch_size, "activation_checkpointing": "none"}
        add(f"with micro-batches of {micro_batch_size}", "tuned", overrides)
    if num_threads is not None:
        add(f"with {num_threads} threads", "threads", {"threads_per_rank": num_threads})
    return results


def make_data_arms(cell: Cell, *, has_copy: bool) -> list[Arm]:
    """Return the arms that leave out the wait for data, and then the copy to the device where there is one."""
    return [
        Arm(name=name_data_arm(cell, place), cell=cell.name, variant=_make_variant(cell), data=place, kind="data")
        for place in (("host", "device") if has_copy else ("device",))
    ]


def make_contention_arms(cell: Cell) -> list[Arm]:
    """Return the arms that tell what ranks take from each other without an exchange: whole copies, and one alone."""
    variant = _make_variant(cell, is_independent=True)
    name = f"{cell.name}, independent copies"
    copies = Arm(name=name, cell=cell.name, variant=variant, data="device", kind="independent")
    return [copies, replace(copies, name=f"{cell.name}, one copy alone", is_alone=True, kind="alone")]


def make_spreading_arms(cell: Cell) -> list[Arm]:
    """Return the arms that leave out what only several ranks have, one thing after another."""
    copies, alone = make_contention_arms(cell)
    update = replace(alone, name=f"{cell.name}, update only", data="loader", part="update", kind="update")
    variant = _make_variant(cell, communicates=False)
    return [
        Arm(name=f"{cell.name}, no communication", cell=cell.name, variant=variant, data="device", kind="silent"),
        copies,
        alone,
        update,
    ]


def name_data_arm(cell: Cell, place: str) -> str:
    """Return the name of the arm whose micro-batches wait at `place`."""
    return f"{cell.name}, data on {place}"


def _make_variant(cell: Cell, **changes: Any) -> dict[str, Any]:
    return {**changes, **({"overrides": dict(cell.overrides)} if cell.overrides else {})}
