"""params.yaml as one validated, frozen model: the only schema of a comparison.

`python -m tasks.params` checks the active one in well under a second: nothing heavy is imported here.
"""

import argparse
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from tasks.stage.choices import NAME, list_of, names_of_files, require_name, require_one_of, require_options
from tasks.stage.complaint import first_complaint
from tasks.stage.failure import ConfigurationError, exit_with_one_line
from tasks.stage.strict_yaml import read_strict_yaml

# validate_repo_id of huggingface_hub, without importing it: 1-96 characters, no "--", no "..".
_HUB_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?")
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")

BUILTIN_MODELS = ("tiny-qwen2",)
BUILTIN_DATASETS = ("docstrings",)
BUILTIN_MAX_ROWS = 6_000
"""Rows that the built-in data set can give at most, on any install of the pinned packages."""


class RowRange(BaseModel):
    """Rows `start` to `end` of the data set, end exclusive; written `start-end`."""

    model_config = ConfigDict(frozen=True)

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"

    def overlaps(self, other: "RowRange") -> bool:
        """Return True if at least one row is in both."""
        return self.start < other.end and other.start < self.end


def _parse_range(value: Any) -> RowRange:
    if isinstance(value, RowRange):
        return value
    match = re.fullmatch(r"(0|[1-9][0-9]{0,11})-(0|[1-9][0-9]{0,11})", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be start-end, two row numbers such as 0-5000")
    parsed = RowRange(start=int(match[1]), end=int(match[2]))
    if parsed.start >= parsed.end:
        raise ValueError("must start before it ends (the end is exclusive), such as 0-5000")
    return parsed


Range = Annotated[RowRange, BeforeValidator(_parse_range), PlainSerializer(str, return_type=str)]


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Finite = Annotated[float, AfterValidator(_finite)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class _Source(_Section):
    source: str
    """`builtin:NAME`, `hub:OWNER/NAME` (Hugging Face Hub) or `path:FILE_OR_FOLDER` (relative to params.yaml)."""
    revision: str | None = None
    """Hub sources only: commit (40 hex digits, pins the content), tag or branch."""

    @property
    def kind(self) -> Literal["builtin", "hub", "path"]:
        """The part of `source` before the colon."""
        return self.source.partition(":")[0]  # type: ignore[return-value]

    @property
    def location(self) -> str:
        """The part of `source` after the colon."""
        return self.source.partition(":")[2]

    def _check_source(self, builtins: tuple[str, ...]) -> None:
        location = self.location
        if self.kind == "builtin":
            if location not in builtins:
                raise ValueError(f"source: no built-in named {location!r}; allowed: {list_of('builtin:', builtins)}")
        elif self.kind == "hub":
            if not _HUB_ID.fullmatch(location) or len(location) > 96:
                raise ValueError(f"source: {location!r} is no Hub id; allowed: OWNER/NAME, at most 96 characters")
        elif self.kind == "path":
            if not location or "\0" in location:
                raise ValueError("source: path: needs a file or folder after the colon")
        else:
            raise ValueError(f"source: got {self.source!r}; allowed: builtin:NAME, hub:OWNER/NAME or path:FILE")
        if (self.kind == "hub") != (self.revision is not None):
            raise ValueError("revision: a hub: source needs one (commit, tag or branch), others take none")
        if self.revision is not None and not re.fullmatch(
            r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", self.revision
        ):
            raise ValueError(f"revision: got {self.revision!r}; allowed: a commit, tag or branch name")


class ModelParams(_Source):
    """The base model, from which every cell starts."""

    name: str
    """Short name in checkpoint files: `<name>_<start>-<end>-epoch-<n>.pt`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_source(BUILTIN_MODELS)
        require_name("name", self.name)
        return self


class DatasetParams(_Source):
    """Where the rows come from."""

    split: str = "train"
    """Hub sources only: the split to read."""
    text_column: str = "text"
    """The column that holds the text of a row."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_source(BUILTIN_DATASETS)
        require_name("split", self.split)
        if not self.text_column:
            raise ValueError("text_column: must not be empty; allowed: the name of a column, such as text")
        return self


class TrainParams(_Section):
    """The work: the same in every cell. How it is spread over ranks is said in `cells`."""

    epochs: int = Field(ge=1, le=10_000)
    """Passes over each range."""
    global_batch_size: int = Field(ge=1, le=1_000_000)
    """Samples per optimizer step, all ranks together."""
    micro_batch_size: int = Field(ge=1, le=1_000_000)
    """Samples per forward pass of one rank."""
    learning_rate: Finite = Field(gt=0, le=10)
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Decay from the peak to 0 over each segment (one range x one epoch); `constant` does not decay."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Optimizer steps at the start of each segment over which the learning rate rises from 0."""
    weight_decay: Finite = Field(default=0.0, ge=0, le=10)
    """Decoupled weight decay of AdamW."""
    max_grad_norm: Finite = Field(default=1.0, gt=0)
    """Largest L2 norm of the whole gradient; a larger one is scaled down to it."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward. Weights and optimizer state stay fp32; fp16 uses a gradient scaler."""
    seq_len: int = Field(ge=2, le=1_048_576)
    """Tokens per sample at most; longer rows are cut."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the order of the samples and of dropout."""
    exact: bool = False
    """Make the weights bitwise independent of the number of ranks; without it they differ by rounding.

    Every micro-batch's gradient is sent to every rank and added in one order: slower on several ranks, and one gradient
    more in memory, so the speedup of exact cells is theirs alone. See docs/decisions.md.
    """
    threads_per_rank: int = Field(default=1, ge=1, le=1024)
    """CPU threads of each rank, the same in every cell so that cells are a fair pair."""
    log_every_steps: int = Field(default=1, ge=1, le=100_000)
    """Optimizer steps between two log points; between them the host never waits for the device."""
    checkpoint_every_steps: int = Field(default=0, ge=0, le=10_000_000)
    """Optimizer steps between two checkpoints inside a segment; 0: only at its end and when asked to stop."""


class CellParams(_Section):
    """One bar of the chart: how the same work is spread."""

    strategy: str
    """How the update is computed: the name of a file in training/strategies/."""
    options: dict[str, Any] = {}
    """Options of the strategy, as OPTIONS in its file names them with their defaults."""
    world_size: int = Field(ge=1, le=4096)
    """Number of ranks (processes); on CUDA one per device."""
    launcher: str = "torchrun"
    """How the ranks are started: the name of a file in tasks/launchers/."""
    oversubscribe: bool = False
    """Allow more ranks than GPUs: the ranks then share devices, and the cell says nothing about scaling."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_one_of("strategy", self.strategy, names_of_files("training/strategies"))
        require_options(self.options, self.strategy)
        require_one_of("launcher", self.launcher, names_of_files("tasks/launchers"))
        if self.strategy == "single" and self.world_size != 1:
            raise ValueError(f"world_size: got {self.world_size} with strategy single; allowed: 1, or strategy ddp")
        return self


class MeasureParams(_Section):
    """How the speedup is measured: short blocks of real steps, the cells taking turns."""

    speed: bool = True
    """Whether to measure it so; false: the only speedup is that of the whole training, without an interval."""
    half_width: Finite | None = Field(default=None, gt=0, le=0.5)
    """Measuring ends once every speedup's 95 % interval is within +- this share; null: 0.02 on GPU, 0.03 on CPU."""
    max_seconds: Finite = Field(default=40.0, gt=0, le=86_400)
    """Seconds after which it ends, narrow enough or not; the fewest rounds that an interval needs are run anyway."""
    block_seconds: Finite = Field(default=0.2, gt=0, le=600)
    """Seconds of one block of the baseline, about: long enough that a moment's interruption does not decide it."""
    scaling: Literal["strong", "weak"] = "strong"
    """strong: every cell has the same global batch; weak: a cell's global batch grows with its number of ranks."""
    advice: bool = True
    """Whether to try the knobs that could make a cell faster, and to advise those that do."""
    advice_seconds: Finite = Field(default=15.0, gt=0, le=86_400)
    """Seconds that trying them may take."""


class TrackingParams(_Section):
    """MLflow."""

    uri: str | None = None
    """Tracking server; null: $MLFLOW_TRACKING_URI, else the SQLite file mlflow.db beside params.yaml."""
    experiment: str = "ddp-compare"
    """MLflow experiment that the comparison's runs belong to."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.experiment.strip():
            raise ValueError("experiment: must not be empty; allowed: a name such as ddp-compare")
        return self


class UploadParams(_Section):
    """Publication on the Hugging Face Hub."""

    repo_id: str | None = None
    """OWNER/NAME of the model repository; null: stage the files in reports/hub/ and publish nothing."""
    private: bool = True
    """Whether a repository that has to be created is private."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.repo_id is not None and (not _HUB_ID.fullmatch(self.repo_id) or len(self.repo_id) > 96):
            raise ValueError(f"repo_id: got {self.repo_id!r}; allowed: OWNER/NAME, at most 96 characters, or null")
        return self


class Params(_Section):
    """One comparison."""

    name: str
    """Name of the comparison, in every output."""
    description: str
    """What it compares, in one sentence; printed at the top of the report."""
    model: ModelParams
    dataset: DatasetParams
    ranges: list[Range] = Field(min_length=1, max_length=1000)
    """Slices of the data set, trained in this order, each continuing from the last."""
    heldout: Range
    """Rows that no range overlaps, on which every model is evaluated."""
    workload: str
    """The ML problem: the name of a file in training/workloads/."""
    train: TrainParams
    cells: dict[str, CellParams] = Field(min_length=1, max_length=64)
    """Name -> how the work is spread. The first cell is the baseline of every speedup."""
    measure: MeasureParams = MeasureParams()
    tracking: TrackingParams = TrackingParams()
    upload: UploadParams = UploadParams()

    @property
    def baseline(self) -> str:
        """The name of the first cell, against which speedups are counted."""
        return next(iter(self.cells))

    @property
    def num_rows_needed(self) -> int:
        """Rows of the data set up to the end of the last slice that is asked for."""
        return max(part.end for part in (*self.ranges, self.heldout))

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError("must be letters, digits, '.', '_' and '-', at most 64, starting with a letter or digit")
        return value

    @field_validator("description")
    @classmethod
    def _check_description(cls, value: str) -> str:
        if not value.strip() or len(value) > 1000:
            raise ValueError("must be one sentence of 1 to 1000 characters")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_one_of("workload", self.workload, names_of_files("training/workloads"))
        for index, part in enumerate(self.ranges):
            for other in self.ranges[:index]:
                if part.overlaps(other):
                    raise ValueError(f"ranges: {part} overlaps {other}; allowed: ranges without a common row")
            if part.overlaps(self.heldout):
                raise ValueError(f"heldout: {self.heldout} overlaps the range {part}; allowed: rows of no range")
        if self.dataset.kind == "builtin" and self.num_rows_needed > BUILTIN_MAX_ROWS:
            raise ValueError(
                f"ranges: row {self.num_rows_needed} is beyond the {BUILTIN_MAX_ROWS} rows of "
                f"{self.dataset.source}; allowed: 0-{BUILTIN_MAX_ROWS}"
            )
        for name, cell in self.cells.items():
            require_name("cells", name)
            _require_even_split(name, cell.world_size, self.train)
        return self

    def grad_accum_steps(self, cell: str) -> int:
        """Return the number of micro-batches that each rank of the cell adds up for one full optimizer step."""
        per_forward = self.cells[cell].world_size * self.train.micro_batch_size
        return self.train.global_batch_size // per_forward


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Return the comparison that the file describes.

    Raises ConfigurationError (exit code 2) with one line that names the key, the value and what is allowed.
    """
    try:
        params = Params.model_validate(read_strict_yaml(path))
        _check_paths(params, path.resolve().parent)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {first_complaint(error, Params)}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return params


def _require_even_split(name: str, world_size: int, train: TrainParams) -> None:
    per_forward = world_size * train.micro_batch_size
    if train.global_batch_size % per_forward:
        below = train.global_batch_size // per_forward * per_forward
        remedy = f"{below} or {below + per_forward}" if below else str(per_forward)
        raise ValueError(
            f"train.global_batch_size: {train.global_batch_size} does not split over cells.{name}.world_size="
            f"{world_size} x train.micro_batch_size={train.micro_batch_size} ({per_forward} samples per forward); "
            f"use {remedy}"
        )


def _check_paths(params: Params, base: Path) -> None:
    """Raise ValueError if a local source is not there or has fewer rows than are asked for."""
    if params.model.kind == "path" and not (base / params.model.location / "config.json").is_file():
        raise ValueError(f"model.source: no file {params.model.location}/config.json; allowed: a model folder")
    if params.dataset.kind != "path":
        return
    file = base / params.dataset.location
    if file.suffix not in (".parquet", ".jsonl"):
        raise ValueError(f"dataset.source: got {params.dataset.location!r}; allowed: a .parquet or .jsonl file")
    if not file.is_file():
        raise ValueError(f"dataset.source: no file {params.dataset.location}; allowed: a .parquet or .jsonl file")
    num_rows = _count_rows(file)
    if num_rows is not None and params.num_rows_needed > num_rows:
        key = "heldout" if params.heldout.end > num_rows else "ranges"
        raise ValueError(
            f"{key}: row {params.num_rows_needed} is beyond the {num_rows} rows of {params.dataset.location}; "
            f"allowed: 0-{num_rows}"
        )


def _count_rows(file: Path) -> int | None:
    """Return the number of rows, or None where the file is no readable parquet (the download stage says so)."""
    if file.suffix == ".jsonl":
        with file.open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    import pyarrow as pa  # here, not above: half a second that only local parquet files need
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError):
        return None


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.params", description="Check params.yaml.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("params.yaml"))
    load_params(parser.parse_args().file)


if __name__ == "__main__":
    exit_with_one_line(_main, name="params")
