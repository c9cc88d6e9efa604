"""What more ranks would give, and the link that it follows from; part of data/measurements/speed.json."""

from pydantic import Field

from tasks.records.estimate import Estimate
from tasks.records.facts import Record


class PredictedPoint(Record):
    """The speedup at one number of ranks: measured, or foretold from there."""

    world_size: int
    """Number of ranks."""
    speedup: Estimate | None = None
    """Foretold from what was measured on the most ranks, with a 90 % interval; null where it was measured."""
    measured: Estimate | None = None
    """What was measured there, with its 95 % interval; null where nothing was."""
    model: Estimate | None = None
    """What the model alone says where it was measured, with a 90 % interval; null elsewhere."""
    model_error: float | None = None
    """By how much that is off: its value / the measured one - 1; null elsewhere."""
    is_extrapolated: bool
    """Whether it lies beyond every number of ranks that was measured."""

    @property
    def shown(self) -> Estimate:
        """Where the curve is: what was measured, else what is foretold."""
        found = self.measured if self.speedup is None else self.speedup
        assert found is not None, "a point is measured or foretold"
        return found


class PredictedCurve(Record):
    """Predicted speedups as the comparison stands, or after one change."""

    lever: str
    """`as it is`, or the change in plain words."""
    points: list[PredictedPoint]
    """By number of ranks."""


class BatchSpeed(Record):
    """What a number of ranks would learn from in a second at a larger global batch, more micro-batches of one size."""

    world_size: int
    """Number of ranks."""
    factor: int
    """How many times the comparison's global batch."""
    throughput: Estimate
    """Tokens per second / the baseline's at its own batch, with a 90 % interval; not that of an equally good model."""


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
    is_slept_for: bool = False
    """Whether nothing was exchanged: an emulated link sleeps for as long as it would take."""


class Prediction(Record):
    """What more ranks would give to one way of spreading the work."""

    cells: list[str]
    """The cells that it begins at: one strategy with the same options."""
    curves: list[PredictedCurve]
    """`as it is` first."""
    assumptions: list[str]
    """What it takes for granted, in plain sentences."""
    left_out: list[str] = Field(default_factory=list)
    """For which numbers of ranks nothing is said, in whole sentences with the reason."""
    batches: list[BatchSpeed] = Field(default_factory=list)
    """Throughput at larger global batches; empty in weak scaling and in earlier results."""
