"""How fast ranks exchange; part of data/measurements/speed.json."""

from tasks.records.facts import Record


class LinkSpeed(Record):
    """How fast the ranks of a cell exchange the largest tensor that was tried, with nothing beside it."""

    world_size: int
    """Number of ranks."""
    kind: str
    """Kind of exchange, such as all_reduce."""
    backend: str | None
    """What carried it: gloo or nccl."""
    num_bytes: float
    """Size of the tensor."""
    seconds: float
    """Median of the repeats, each of its slowest rank."""
    bus_gb_per_second: float
    """10^9 bytes that go over one link of a ring each second, as nccl-tests counts bus bandwidth."""
    latency_seconds: float | None = None
    """Seconds of an exchange of no bytes, by the line through all sizes; null in results of an earlier version."""
    seconds_per_byte: float | None = None
    """Seconds that each byte adds, by the same line."""
    is_slept_for: bool = False
    """Whether nothing was exchanged: an emulated link sleeps for as long as it would take."""
