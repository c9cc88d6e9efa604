"""What the machine did while the speed was measured: a reading of each timed block, in the order of time."""

from tasks.records.facts import Record
from tasks.records.measurement import MeasurementFile

_MOST_READINGS = 240
"""Of a cell: of more blocks some are left out, evenly spread."""


class HardwareReading(Record):
    """What the ranks of a cell, and their GPUs, did in one block; nobody was asked anything inside the clock."""

    started_at: float
    """When it began, seconds since 1970."""
    cores_used: list[float]
    """Cores' worth of time that each rank used."""
    host_gib: list[float] | None
    """Memory of the host that each rank held; null where the system does not tell."""
    gpu_utilisations: list[float | None] | None
    """Share of the block in which each GPU ran any kernel, 0..1; null on the CPU."""
    gpu_watts: list[float | None] | None
    """Mean power of each GPU; null on the CPU."""
    gpu_memory_gib: list[float | None] | None
    """Most memory of each GPU in use; null on the CPU."""


class CellHardware(Record):
    """The readings of one cell."""

    cell: str
    """Name of the cell."""
    readings: list[HardwareReading]
    """In the order of time."""


def collect_hardware(found: MeasurementFile) -> list[CellHardware]:
    """Return the readings of the blocks that the speedups are of, cell by cell; none of an earlier version's."""
    collected = []
    for arm in found.blocks:
        readings = [
            HardwareReading(**block.model_dump(include=set(HardwareReading.model_fields)))
            for block in arm.blocks
            if block.started_at is not None
        ]
        if arm.phase == "speedup" and arm.kind == "as trained" and readings:
            every = -(-len(readings) // _MOST_READINGS)
            collected.append(CellHardware(cell=arm.cell, readings=readings[::every]))
    return collected
