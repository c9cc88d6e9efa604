"""What the ranks of a cell take of memory, measured and as a rehearsal says; part of data/measurements/speed.json."""

from typing import Literal

from tasks.records.facts import Record


class MemoryParts(Record):
    """What a rank's memory holds when all of it together is most; GiB."""

    weights: float
    """Weights, and their copies in 16 bit."""
    gradients: float
    """Gradients, in fp32."""
    moments: float
    """What the optimizer keeps of each weight."""
    activations: float
    """What the backward needs, and whatever is none of the others."""
    logits: float
    """All that is as wide as the vocabulary or the classes."""
    communication: float
    """What is exchanged: buckets, and layers gathered from other ranks."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(getattr(self, name) for name in MemoryParts.model_fields)


class RankMemory(Record):
    """Most memory of one rank in real steps, nothing else being in its process."""

    allocated_gib: float | None
    """Of the device: by torch's allocator on a GPU, by the life of its tensors on the CPU; null if nobody could follow
    them."""
    reserved_gib: float | None
    """What torch had taken from the GPU; null on the CPU."""
    host_gib: float | None
    """Resident memory of the process; on the CPU its tensors are in it. Null where the system does not tell."""
    host_before_gib: float | None
    """The same before the model was there."""
    parts: MemoryParts | None
    """What the device's is for, by the life of its tensors; null for compiled layers."""


class CellMemory(Record):
    """What a step of a cell takes of memory."""

    cell: str
    """Name of the cell."""
    device: Literal["cpu", "cuda"]
    """Where it was measured."""
    micro_batch_size: int
    """Samples in one forward pass of one rank, in the largest micro-batch of the rows that were timed."""
    ranks: list[RankMemory]
    """Rank by rank."""
    predicted: MemoryParts | None
    """What a rehearsal without running anything says of the rank that has most; null where it says nothing."""
    not_predicted: str | None = None
    """Why it says nothing; null where it does."""

    @property
    def largest(self) -> RankMemory:
        """The rank that has most."""
        return max(self.ranks, key=lambda item: item.allocated_gib or 0.0)
