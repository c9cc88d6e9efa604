"""data/measurements/certificate.json: whether an update of each cell's ranks equals that of one process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from tasks.records.facts import Record
from tasks.records.gate import Verdict
from tasks.records.stage_file import StageFile


@dataclass(frozen=True)
class Difference:
    """How far tensors are from the expected ones, all parameters together."""

    max_abs: float
    """Largest absolute difference of an element."""
    relative_l2: float
    """L2 norm of the differences / L2 norm of the expected tensors, or of what an update changed; summed in fp64."""
    is_bitwise_equal: bool
    """Whether all bits agree."""
    largest_in: str | None
    """The parameter with the largest L2 norm of differences; None if they are equal."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What was found of one update, for one kind of tensor."""

    found: Difference
    """The ranks against one process; of weights, relative to what the update changed."""
    noise_floor: float
    """Gradient: the largest relative L2 difference that another order makes. Weights: one rounding of each."""
    tolerance: float
    """Largest relative L2 difference allowed."""

    @property
    def excess(self) -> float:
        """How many times the tolerance the difference is; NaN counts as infinitely many."""
        ratio = self.found.relative_l2 / self.tolerance
        return ratio if ratio == ratio else float("inf")


@dataclass(frozen=True, kw_only=True)
class Update:
    """One update of the ranks against that of one process from the same state."""

    step: int
    """From 1."""
    gradient: Compared | None
    """None if it is finite on neither side, as an overflow of fp16 leaves it; no update is then made."""
    weights: Compared | None
    """None without a gradient, and where the ranks left no weights behind."""


class OfEach(Record):
    """A relative L2 difference of each kind of tensor; null where there was none to compare."""

    gradient: float | None
    """Of the gradient, relative to the gradient."""
    weights: float | None
    """Of the weights, relative to what the update changed in them."""


class CertifiedCell(Record):
    """One cell: its ranks against one process, in the worst of its updates."""

    cell: str
    """Name of the cell."""
    strategy: str = ""
    """How its updates are computed."""
    world_size: int
    """Number of ranks."""
    device: str = ""
    """cpu or cuda."""
    precision: str | None = None
    """In which both computed."""
    exact: bool = False
    """Whether its weights must not depend on the number of ranks."""
    num_steps: int
    """Updates that were compared."""
    gradient: Difference | None = None
    """How far the gradient is off."""
    weights: Difference | None = None
    """How far the weights are off."""
    noise_floor: OfEach | None = None
    """What re-ordered sums make of the gradient, and rounding of the weights."""
    tolerance: OfEach | None = None
    """What is allowed."""
    updates: list[Update] = Field(default_factory=list)
    """Every update."""
    verdict: Verdict
    """`not checked`: the noise hides what a wrong trainer does, or there is no second computation."""
    problem: str | None
    """Why it did not pass, in plain words."""
    seconds: float
    """Seconds that it took."""


class CertifiedFile(CertifiedCell, StageFile):
    """One cell's certificate, as it is kept for the next run."""

    NAME: ClassVar[str] = "certificate.json"


class CertificateFile(StageFile):
    """The certificates of all cells that spread an update."""

    NAME: ClassVar[str] = "certificate.json"

    code_digest: str
    """Digest of the code that trained."""
    base_model_digest: str
    """Digest of the base model."""
    machine_digest: str
    """Digest of the machine's facts."""
    sample: dict[str, Any] = Field(default_factory=dict)
    """The rows that it was made on: range, digest and counts."""
    num_orders: int | None = None
    """Other orders in which one process added the gradients up."""
    margin: float
    """How many times the noise floor may be exceeded."""
    cells: Sequence[CertifiedCell]
    """In the order of params.yaml."""
