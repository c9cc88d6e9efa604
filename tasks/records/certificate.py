"""data/measurements/certificate.json: whether an update of each cell's ranks equals that of one process."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from tasks.records.compared_update import Compared, Difference, Update
from tasks.records.facts import Record
from tasks.records.gate import Verdict
from tasks.records.stage_file import StageFile


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
    global_batch_size: int
    """Samples per update: as trained, or as timed in weak scaling, which is a certificate of its own."""
    device: str = ""
    """cpu or cuda."""
    precision: str | None = None
    """In which both computed."""
    micro_batch_size: int | None = None
    """Samples per forward pass of both; fewer than asked for where memory ran out."""
    packed_kernels: Compared | None = None
    """The gradient of packed rows in the precision of the training, against that of the same rows unpacked; null where
    the certificate itself is in that precision."""
    exact: bool = False
    """Whether its weights must not depend on the number of ranks."""
    settings: list[dict[str, Any]] = Field(default_factory=list)
    """What its ranks updated with, by value and by their own record, as segment.json has it of a training."""
    replaced: dict[str, Any] = Field(default_factory=dict)
    """`train.` and a name -> the training's value, where both computed with another one on purpose."""
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
    """The certificates of all cells that spread an update, one for each number of samples that they update with."""

    NAME: ClassVar[str] = "certificate.json"

    numerics_version: int
    """NUMERICS_VERSION of what trained."""
    base_model_digest: str
    """Digest of the base model."""
    machine_digest: str
    """Digest of the machine's facts."""
    sample: dict[str, Any] = Field(default_factory=dict)
    """The rows that updates as trained were made on: range, digest and counts."""
    margin: float
    """How many times the noise floor may be exceeded."""
    cells: Sequence[CertifiedCell]
    """In the order of params.yaml."""
