"""The JSON files of the earlier stages, as far as the report reads them."""

from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from tasks.records.gate import Verdict
from tasks.records.measurement import RankDevice


class StageFile(BaseModel):
    """A JSON file of another stage; keys that the report does not need are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class SourceManifest(StageFile):
    """The common part of data/raw/manifest.json and data/base_model/manifest.json."""

    source: str
    kind: str
    revision: str | None = None
    commit: str | None = None
    label: str
    digest: str
    license: str | None = None


class RawManifest(SourceManifest):
    """data/raw/manifest.json"""

    split: str | None = None
    text_column: str | None
    num_rows: int
    num_duplicate_rows: int = 0
    num_heldout_rows_seen: int = 0
    packages: dict[str, str] = {}
    class_names: list[str] = []


class BaseModelManifest(SourceManifest):
    """data/base_model/manifest.json"""

    num_parameters: int
    model_type: str
    is_random_weights: bool


class SliceManifest(StageFile):
    """data/slices/<start>-<end>/manifest.json"""

    range: str
    num_rows: int
    num_tokens: int
    quarantined: dict[str, int] = {}
    num_cut_rows: int = 0
    num_special_token_rows: int = 0
    digest: str


class MachineFile(StageFile):
    """data/fingerprint/machine.json"""

    digest: str
    gpus: list[dict[str, Any]]
    driver: str | None = None
    cpu: str
    num_cpus: int
    os: str
    versions: dict[str, str | None]


class Exchanged(StageFile):
    """What a rank put into the collectives of one kind, in segment.json."""

    number: int
    num_bytes: int


class RecordedExchanges(StageFile):
    """What torch recorded of the exchanges of a segment's last steps, on the first rank."""

    num_steps: int
    number: int
    num_bytes: int
    counted_number: int
    counted_bytes: int


class SegmentFile(StageFile):
    """segment.json: the totals of one segment."""

    cell: str
    range: str
    epoch: int
    num_steps: PositiveInt
    num_samples: int
    num_tokens: int
    num_targets: int | None = None
    train_seconds: PositiveFloat
    data_wait_seconds: float
    other_seconds: float
    checkpoint_seconds: float
    log_seconds: float
    span_seconds: float
    loss: float
    peak_memory_gib: float | None = None
    traffic: dict[str, Exchanged]
    exchange: dict[str, Any]
    start_checksum: str
    start_optimizer_checksum: str
    parameter_checksums: list[str]
    optimizer_checksums: list[str]
    num_resumes: int
    checkpoints_not_used: list[str]
    started_at: str
    micro_batch_sizes: list[int] = []
    settings: list[dict[str, Any]] = []
    version_drift: list[str] = []
    rank_devices: list[RankDevice] = []
    recorded_exchanges: RecordedExchanges | None = None

    @property
    def weight(self) -> int:
        """What `loss` is the mean over: labels."""
        return self.num_tokens if self.num_targets is None else self.num_targets


class SegmentEntry(StageFile):
    """Where run.json says that a segment lies."""

    folder: str


class NodeFile(StageFile):
    """One of several machines, in run.json."""

    node_rank: int
    host: str
    cpu: str
    num_cpus: int
    gpus: list[dict[str, Any]]
    num_ranks: int
    address: str
    interface: str
    gpu_energy_joules: float | None


class RunFile(StageFile):
    """run.json: one cell's whole training."""

    cell: str
    strategy: str
    world_size: int
    launcher: str
    threads_per_rank: int
    num_nodes: int = 1
    nodes: list[NodeFile] = []
    device: str
    backend: str | None = None
    micro_batch_size: int
    grad_accum_steps: int
    global_batch_size: int
    base_model_digest: str
    machine_digest: str
    code_digest: str
    segments: list[SegmentEntry]
    final_checkpoint: str
    train: dict[str, Any]
    workload: str


class DifferenceFile(StageFile):
    """How far two sets of tensors are apart, in certificate.json."""

    max_abs: float
    relative_l2: float
    is_bitwise_equal: bool
    largest_in: str | None


class NoiseFloorFile(StageFile):
    """What re-ordered sums make of the gradient, and rounding of the weights, in certificate.json."""

    gradient: float | None
    weights: float | None


class ToleranceFile(StageFile):
    """Largest relative L2 differences allowed, in certificate.json."""

    gradient: float | None
    weights: float | None


class CertifiedCell(StageFile):
    """One cell in certificate.json: its ranks against one process."""

    cell: str
    world_size: int
    num_steps: int
    precision: str | None = None
    gradient: DifferenceFile | None = None
    weights: DifferenceFile | None = None
    noise_floor: NoiseFloorFile | None = None
    tolerance: ToleranceFile | None = None
    verdict: Verdict
    problem: str | None


class CertificateFile(StageFile):
    """data/measurements/certificate.json"""

    code_digest: str
    base_model_digest: str
    machine_digest: str
    margin: float
    cells: list[CertifiedCell]


class EvaluatedModel(StageFile):
    """One model's figures in evaluation.json."""

    loss: float
    num_tokens: int
    accuracy: float | None = None
    accuracy_top5: float | None = None
    checkpoint: str | None = None
    parameter_checksum: str


class EvaluatedEpoch(StageFile):
    """One cell's figures after one segment, in evaluation.json."""

    range: str
    epoch: int
    checkpoint: str
    parameter_checksum: str
    loss: float
    accuracy: float | None = None
    accuracy_top5: float | None = None


class EvaluatedSample(StageFile):
    """One continued row in evaluation.json."""

    row_id: int
    prompt: str
    reference: str
    continuations: dict[str, str]


class FirstStepFile(StageFile):
    """The base model on the rows of the first global batch, in evaluation.json."""

    range: str
    epoch: int
    num_rows: int
    num_tokens: int
    parameter_checksum: str
    loss: float | None
    why_no_loss: str | None = None


class EvaluationFile(StageFile):
    """data/evaluation/evaluation.json"""

    heldout: str
    num_rows: int
    seq_len: int
    first_step: FirstStepFile
    models: dict[str, EvaluatedModel]
    samples: list[EvaluatedSample] = []
    epochs: dict[str, list[EvaluatedEpoch]] = {}
