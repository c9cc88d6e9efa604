"""segment.json: what a finished segment came to. The ranks write this class, and the report reads the same one."""

from dataclasses import dataclass, field
from typing import Any

SEGMENT_FILE = "segment.json"
"""Its name in the folder of the segment."""


@dataclass
class Exchanged:
    """What a rank put into the collectives of one kind."""

    number: int = 0
    """Collectives."""
    num_bytes: int = 0
    """Bytes that it put into them."""


@dataclass(frozen=True, kw_only=True)
class RecordedExchanges:
    """What torch recorded of the exchanges of the last steps, on the first rank, beside what the steps counted."""

    num_steps: int
    """So many last steps; as many as the record still had."""
    number: int
    """Exchanges, as torch recorded them."""
    num_bytes: int
    """Bytes that these were given."""
    counted_number: int
    """Exchanges, as the steps counted them."""
    counted_bytes: int
    """Bytes that these were given."""


@dataclass(frozen=True, kw_only=True)
class RankDevice:
    """What a rank computes on, as the rank itself sees it."""

    gpu_uuid: str | None = None
    """Its GPU; None on the CPU."""
    cpus: list[int] | None = None
    """Cores that it may use; None where the system does not tell."""
    cpu_quota: float | None = None
    """Cores' worth of time that its control group may use; None without a limit."""


@dataclass
class Counters:
    """Running totals of a segment; plain values, saved with every checkpoint."""

    started_at: str
    """UTC, ISO 8601: when its first launch began it."""
    start_checksum: str
    """Checksum of the parameters at its start: the predecessor's at its end."""
    start_optimizer_checksum: str = ""
    """Checksum of the optimizer's state at its start: the predecessor's at its end."""
    num_steps: int = 0
    """Steps done."""
    num_samples: int = 0
    """Samples consumed, all ranks."""
    num_tokens: int = 0
    """What was learned from, in the workload's unit, all ranks."""
    num_targets: int = 0
    """Labels learned from, all ranks."""
    num_padding_tokens: int = 0
    """Positions that held padding, all ranks."""
    loss_sum: float = 0.0
    """Sum of the losses of all labels."""
    train_seconds: float = 0.0
    """Sum of the timed optimizer steps, each of its slowest rank."""
    data_wait_seconds: float = 0.0
    """Part of it in which a rank had no data."""
    other_seconds: float = 0.0
    """Part of train_seconds in which a rank neither computed nor waited for data or for the device."""
    checkpoint_seconds: float = 0.0
    """Seconds spent on checkpoints, never part of train_seconds."""
    log_seconds: float = 0.0
    """Seconds spent at log points, never part of train_seconds."""
    heldout_seconds: float = 0.0
    """Seconds spent on the held-out rows, never part of train_seconds."""
    check_seconds: float = 0.0
    """Seconds spent on checking updates, never part of train_seconds."""
    checked_updates: list[dict[str, Any]] = field(default_factory=list)
    """What was found of each update that was to be checked (tasks/records/checked_update.py)."""
    span_seconds: float = 0.0
    """Wall-clock seconds from before the first step to here, all launches together; by a clock that never stops."""
    traffic: dict[str, Exchanged] = field(default_factory=dict)
    """Kind of collective -> what rank 0 put into those of the steps."""
    num_resumes: int = 0
    """Launches that went on with it."""
    peak_memory_gib: float | None = None
    """Most GPU memory that any rank had allocated; None on CPU."""
    peak_reserved_gib: float | None = None
    """Most that torch had taken from a GPU for any rank, what lay idle in pieces included; None on CPU."""
    micro_batch_sizes: list[int] = field(default_factory=list)
    """Samples per forward pass, in the order of use; several where memory ran out and it went on with smaller ones."""
    version_drift: list[str] = field(default_factory=list)
    """What was another version when the state that a launch went on from was saved: "torch 2.14.0, then 2.15.0"."""
    settings: list[dict[str, Any]] = field(default_factory=list)
    """What it ran with (training/record/setting.py), in the order of use; one, unless launches differed."""
    code_digests: list[str] = field(default_factory=list)
    """sha256 of the files of training/ that trained it, as settings; none in one of an earlier version."""


@dataclass(kw_only=True)
class SegmentFacts(Counters):
    """The whole of segment.json: which segment it is, its counters at the end, and what follows from them."""

    cell: str
    """Name of the cell."""
    range: str
    """Rows of the data set, `start-end`, end exclusive."""
    epoch: int
    """Pass over the range, from 1."""
    fingerprint: str
    """Digest of everything that its content depends on."""
    first_step: int
    """Its first step, counted from 1 over the whole run."""
    last_step: int
    """Its last step, counted so too."""
    loss: float
    """Mean loss of its labels."""
    tokens_per_second: float
    """num_tokens / train_seconds, all ranks together."""
    samples_per_second: float
    """num_samples / train_seconds, all ranks together."""
    backend: str | None
    """What carried the collectives; None for a single rank."""
    exchange: dict[str, Any]
    """How the exchange is laid out, as the strategy says."""
    parameter_checksums: list[str]
    """Checksum of the parameters at its end, rank by rank."""
    optimizer_checksums: list[str]
    """Checksum of the optimizer's state at its end, rank by rank."""
    rank_devices: list[RankDevice] = field(default_factory=list)
    """What each rank computed on."""
    recorded_exchanges: RecordedExchanges | None = None
    """What torch's own record says of the exchanges of the last steps; None where it says nothing."""
    checkpoints_not_used: list[str] = field(default_factory=list)
    """`NAME: why` of every checkpoint that was damaged or did not fit."""

    def __post_init__(self) -> None:
        if self.num_steps < 1 or not self.train_seconds > 0:
            raise ValueError(f"{self.num_steps} steps in {self.train_seconds} seconds; allowed: more than 0 of both")
