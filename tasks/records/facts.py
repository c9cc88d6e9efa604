"""What every record is made of, and the part of results.json that says what was compared, and on what."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A record, or a part of one: unknown keys are refused, and nothing in it changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @classmethod
    def take_from(cls, record: BaseModel, **others: Any) -> Self:
        """Return one with the values of the fields that both have; `others` are other values, and more."""
        return cls(**{**record.model_dump(include=set(cls.model_fields)), **others})


class SourceFacts(Record):
    """Where the rows or the base model came from."""

    source: str
    """As in params.yaml: builtin:NAME, hub:OWNER/NAME or path:FILE."""
    revision: str | None
    """The revision asked for; null for a local or built-in source."""
    commit: str | None
    """The commit that the Hub resolved it to."""
    label: str
    """What it is, in plain words."""
    digest: str
    """sha256 of the content."""
    license: str | None = None
    """The licence that its source names; null where that is not known."""


class BaseModelFacts(SourceFacts):
    """The base model, as it was downloaded."""

    model_type: str
    """The architecture, as in config.json."""
    num_parameters: int
    """Number of parameters."""
    is_random_weights: bool
    """True if the weights were drawn at random, not pretrained."""


class ModelFacts(BaseModelFacts):
    """The base model."""

    name: str
    """The short name in checkpoint files."""


class TokenisedFacts(Record):
    """What the first rows became by the base model's tokenizer."""

    num_rows: int
    """Rows that were looked at."""
    num_tokens: int
    """Their tokens."""
    unknown_share: float
    """Share of these that stand for what the tokenizer does not know, 0..1."""
    num_rows_without_target: int
    """Rows from which nothing can be learned: too short to predict a token, or a prompt that leaves no room."""
    num_equal_rows: int
    """Rows that say something else than an earlier one, and have the same tokens."""
    before: str
    """What the tokenizer puts before a text, as text."""
    behind: str
    """What stands behind it."""


class DatasetFacts(SourceFacts):
    """The data set."""

    split: str | None
    """The split that was read."""
    config: str | None = None
    """Which of the configs of its source it is; null where that has none."""
    text_column: str | None
    """The column that holds the text."""
    languages: list[str] = []
    """The languages of its texts, such as en, as its source names them; empty where that is not known."""
    num_rows: int
    """Rows that were read."""
    num_duplicate_rows: int = 0
    """Rows whose text stands in an earlier row too, but for case and white space; they are trained on like others."""
    num_heldout_rows_seen: int = 0
    """Held-out rows whose text also stands in a row outside the held-out slice, but for case and white space."""
    heldout_source: str | None = None
    """Where the held-out rows are from, if not from there; null: they are rows of the same source."""
    tokenised: TokenisedFacts | None = None
    """What the first rows became; null for images."""
    packages: dict[str, str] = {}
    """Built-in data set only: the packages whose texts were read, with their versions."""


class SliceFacts(Record):
    """One slice of the data set."""

    range: str
    """Rows start-end, end exclusive."""
    num_rows: int
    """Rows in it."""
    num_tokens: int
    """Tokens in it, before rows are cut to seq_len."""
    quarantined: dict[str, int] = {}
    """Rows of the range that were left out, by their fault: null, blank, nul and so on."""
    num_cut_rows: int = 0
    """Rows that were cut to 1,000,000 characters."""
    num_special_token_rows: int = 0
    """Rows whose text names a special token of the tokenizer; it was encoded as text."""
    num_cut_responses: int = 0
    """Instructions only: rows whose response is cut in training, since prompt and response are longer than seq_len."""
    class_counts: dict[str, int] = {}
    """Class -> rows of it, for those that are there; empty where rows have none."""
    digest: str
    """sha256 of its tokens."""


class GpuFacts(Record):
    """One GPU."""

    name: str
    """As the driver names it."""
    memory_gib: float | None
    """Its memory; null where the driver does not tell, as of one that has the host's."""
    compute_capability: str | None = None
    """What NVIDIA calls its generation, such as 9.0."""


class SpreadFacts(Record):
    """How the work was spread in a cell."""

    cell: str
    """Name of the cell."""
    strategy: str
    """How the update is computed on several ranks."""
    world_size: int
    """Number of ranks."""
    launcher: str
    """How the ranks were started."""
    num_nodes: int = 1
    """Machines that the ranks were on."""
    threads_per_rank: int
    """CPU threads of each rank."""
    device: str
    """cpu or cuda."""
    micro_batch_size: int
    """Samples per forward pass of one rank."""
    grad_accum_steps: int
    """Forward passes of each rank per optimizer step."""
    global_batch_size: int
    """Samples per optimizer step, all ranks together."""


class NodeFacts(Record):
    """One of several machines that a cell's ranks were on."""

    node_rank: int
    """From 0, the head, which has the first ranks."""
    host: str
    """Its name."""
    cpu: str
    """Name of its processor."""
    num_cpus: int
    """CPUs that its ranks could use."""
    gpus: list[GpuFacts]
    """GPUs that its ranks could use."""
    num_ranks: int
    """Ranks on it."""
    address: str
    """Its address on the way to the head."""
    interface: str
    """Network interface that has it."""
    gpu_energy_joules: float | None
    """What its GPUs used during the last launch; null where they do not tell."""


class MachineFacts(Record):
    """The machine that trained."""

    digest: str
    """sha256 of these facts."""
    gpus: list[GpuFacts]
    """The GPUs that the training could use."""
    driver: str | None
    """Version of the NVIDIA driver."""
    cpu: str
    """Name of the processor."""
    num_cpus: int
    """CPUs that the training could use."""
    os: str
    """Operating system."""
    versions: dict[str, str | None]
    """Versions of Python and of what computes."""


class ComparisonFacts(Record):
    """What was compared, and on what."""

    model: ModelFacts
    """The base model, from which every cell starts."""
    dataset: DatasetFacts
    """Where the rows come from."""
    ranges: list[SliceFacts]
    """The slices that were trained, in this order."""
    heldout: SliceFacts
    """The slice that every model is evaluated on; no range overlaps it."""
    workload: str
    """The ML problem."""
    unit: str = "token"
    """What throughput counts: token or image; what is called tokens in other places is so many of it."""
    scaling: Literal["strong"] = "strong"
    """strong: the global batch is the same in every cell."""
    train: dict[str, bool | int | float | str]
    """The work, the same in every cell: the section `train` of params.yaml, as it stands in the baseline's record."""
    recorded: dict[str, dict[str, bool | int | float | str | None]] = {}
    """`versions`, `kernels` and `environment` as the baseline's ranks recorded them; the other cells' are the same.
    `packages`: versions of what only some cells compute with, such as deepspeed or peft."""
    machine: MachineFacts
    """The machine."""
    trained_at: str
    """UTC time at which the first segment began to train; finished segments are reused by later reports."""
