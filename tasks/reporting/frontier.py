"""Seconds per token against memory per rank: what each cell costs of both, and which is best on a card of some size."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.machine.gpu_checks import compute_needed_gib
from tasks.records.arm_figures import select_arm
from tasks.records.cell_memory import CellMemory
from tasks.records.estimate import Estimate
from tasks.records.measurement import ArmSpeed
from tasks.reporting.results import Results

CARDS_GB = (16, 24, 40, 80)
"""Memory of cards, as it is named in shops: 10^9 bytes."""
_GB_PER_GIB = 2**30 / 1e9


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a cell stands."""

    cell: str
    """Its name."""
    number: int
    """Its place among the cells, from 0."""
    seconds_per_token: Estimate
    """Of all ranks together, with a 95 % interval: the baseline's, and of the other cells those / the speedup, which is
    of turns that both had. Their own seconds may be of other turns than each other's."""
    memory_gib: float
    """Allocated by the rank that has most."""
    needed_gb: float
    """What that rank needs of a card, a context and pieces of memory included; 10^9 bytes."""
    is_proven: bool
    """Whether all gates of the cell and of the baseline passed."""


def list_places(results: Results) -> list[Place]:
    """Return the cells whose speed and memory were measured and whose gates did not fail, in their order."""
    measurement = results.measurement
    if measurement is None:
        return []
    memory = {one.cell: one for one in measurement.memory}
    return [
        _make_place(results, number, memory[cell.cell])
        for number, cell in enumerate(results.cells)
        if cell.cell in memory
        and memory[cell.cell].largest.allocated_gib is not None
        and not results.is_hidden(cell.cell)
    ]


def _make_place(results: Results, number: int, memory: CellMemory) -> Place:
    assert results.measurement is not None
    arm, largest = select_arm(results.measurement, memory.cell), memory.largest
    assert largest.allocated_gib is not None
    return Place(
        cell=memory.cell,
        number=number,
        seconds_per_token=_compute_seconds(select_arm(results.measurement, results.baseline.cell), arm.speedup)
        if arm.speedup is not None
        else _compute_own_seconds(arm),
        memory_gib=largest.allocated_gib,
        needed_gb=compute_needed_gib(largest.allocated_gib, largest.reserved_gib) * _GB_PER_GIB,
        is_proven=results.cells[number].standing.state == "proven",
    )


def _compute_own_seconds(arm: ArmSpeed) -> Estimate:
    step, seconds = arm.step_seconds, 1 / arm.tokens_per_second
    return Estimate(value=seconds, low=seconds * step.low / step.value, high=seconds * step.high / step.value)


def _compute_seconds(baseline: ArmSpeed, speedup: Estimate) -> Estimate:
    seconds = 1 / baseline.tokens_per_second
    return Estimate(value=seconds / speedup.value, low=seconds / speedup.high, high=seconds / speedup.low)


def find_best(places: Sequence[Place], card_gb: float) -> Place | None:
    """Return the proven cell with the fewest seconds per token that needs no more than the card has; None: none."""
    fit = [place for place in places if place.is_proven and place.needed_gb <= card_gb]
    return min(fit, key=lambda place: place.seconds_per_token.value, default=None)


def is_of_cpu(results: Results) -> bool:
    """Return whether memory was counted where there is no card."""
    return results.measurement is not None and any(one.device == "cpu" for one in results.measurement.memory)
