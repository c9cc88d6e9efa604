"""The sections `model` and `dataset` of params.yaml, and ranges of rows: where everything comes from."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from tasks.params.choices import has_labels, join_choices, read_unit, require_name
from tasks.params.image_files import list_image_files
from tasks.params.section import Section

# validate_repo_id of huggingface_hub, without importing it: 1-96 characters, no "--", no "..".
_HUB_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?")
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")

_MAX_LINE_BYTES = 16 * 2**20
_MAX_TAR_BYTES_TO_COUNT = 2**30

BUILTIN_CLASSIFIERS = ("tiny-modernbert",)
BUILTIN_IMAGE_MODELS = ("resnet18",)
BUILTIN_MODELS = ("tiny-qwen2", *BUILTIN_CLASSIFIERS, *BUILTIN_IMAGE_MODELS)
BUILTIN_IMAGES = ("digits",)
BUILTIN_DATASETS = ("docstrings", *BUILTIN_IMAGES)
BUILTIN_LABELS = ("package",)
BUILTIN_MAX_ROWS = 6_000
"""Rows that the built-in texts can give at most, on any install of the pinned packages."""
_MOST_ROWS = 2**31 - 1
"""What the work ledger can number (training/record/segment.py)."""
_BUILTIN_ROWS = {"docstrings": BUILTIN_MAX_ROWS, "digits": 1_797}


def is_hub_id(name: str) -> bool:
    """Return whether the Hub could have a repository of that name."""
    return len(name) <= 96 and _HUB_ID.fullmatch(name) is not None


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
    if parsed.end > _MOST_ROWS:
        raise ValueError(f"must end by row {_MOST_ROWS:,}")
    if parsed.start >= parsed.end:
        raise ValueError("must start before it ends (the end is exclusive), such as 0-5000")
    return parsed


Range = Annotated[RowRange, BeforeValidator(_parse_range), PlainSerializer(str, return_type=str)]


def count_rows_needed(ranges: list[RowRange], heldout: RowRange) -> int:
    """Return the rows of the data set up to the end of the last slice that is asked for."""
    return max(part.end for part in (*ranges, heldout))


class Source(Section):
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
                raise ValueError(
                    f"source: no built-in named {location!r}; allowed: {join_choices('builtin:', builtins)}"
                )
        elif self.kind == "hub":
            if not is_hub_id(location):
                raise ValueError(f"source: {location!r} is no Hub id; allowed: OWNER/NAME, at most 96 characters")
        elif self.kind == "path":
            if not location or "\0" in location:
                raise ValueError(f"source: got {self.source[:80]!r}; allowed: path:, and then a file or folder")
        else:
            raise ValueError(f"source: got {self.source!r}; allowed: builtin:NAME, hub:OWNER/NAME or path:FILE")
        if (self.kind == "hub") != (self.revision is not None):
            raise ValueError(
                f"revision: got {self.revision!r} for {self.source[:80]!r}; allowed: a commit, tag or branch for a "
                "hub: source, and none for others"
            )
        if self.revision is not None and not _REVISION.fullmatch(self.revision):
            raise ValueError(f"revision: got {self.revision!r}; allowed: a commit, tag or branch name")


class ModelParams(Source):
    """The base model, from which every cell starts."""

    name: str
    """Short name in checkpoint files: `<name>_<start>-<end>-epoch-<n>.pt`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_source(BUILTIN_MODELS)
        require_name("name", self.name)
        return self


def require_model_for(workload: str, model: ModelParams) -> None:
    """Raise ValueError for a built-in model that does not do what the workload learns."""
    of_texts = [name for name in BUILTIN_MODELS if name not in BUILTIN_IMAGE_MODELS]
    does = [name for name in of_texts if (name in BUILTIN_CLASSIFIERS) == has_labels(workload)]
    if read_unit(workload) == "image":
        does = list(BUILTIN_IMAGE_MODELS)
    if model.kind == "builtin" and model.location not in does:
        raise ValueError(
            f"model.source: got {model.source} with workload {workload}; allowed: {join_choices('builtin:', does)}"
        )


class DatasetParams(Source):
    """Where the rows come from."""

    split: str = "train"
    """Hub sources only: the split to read, or several, one after another: train+test."""
    text_column: str = "text"
    """The column that holds the text of a row."""
    label: str | None = None
    """The column that holds the class of a row, a text or a whole number, for a workload that learns classes."""
    image_size: int | None = Field(default=None, ge=8, le=1024)
    """Rows are images, and their middle square is resized to so many pixels a side, once; null: rows are texts."""

    @property
    def holds_images(self) -> bool:
        """Whether its rows are images: a folder of class folders, a tar of such, or built-in ones."""
        return self.image_size is not None

    @property
    def max_rows(self) -> int | None:
        """Rows that a built-in data set can give at most; None for others."""
        return _BUILTIN_ROWS[self.location] if self.kind == "builtin" else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_source(BUILTIN_DATASETS)
        for split in self.split.split("+"):
            require_name("split", split)
        if not self.text_column:
            raise ValueError("text_column: must not be empty; allowed: the name of a column, such as text")
        if self.label is not None and (not self.label or self.label == self.text_column):
            raise ValueError(f"label: got {self.label!r}; allowed: the name of another column than text_column")
        if self.kind == "builtin" and self.label not in (None, *BUILTIN_LABELS):
            raise ValueError(f"label: got {self.label[:80]!r}; allowed: {join_choices('', BUILTIN_LABELS)}")
        if self.kind == "hub" or (self.kind == "builtin" and self.location not in BUILTIN_IMAGES):
            if self.holds_images:
                raise ValueError(f"image_size: got {self.image_size} for texts; allowed: null")
        elif self.kind == "builtin" and not self.holds_images:
            raise ValueError("image_size: got null for images; allowed: pixels of a side, such as 32")
        return self


def check_paths(
    model: ModelParams, dataset: DatasetParams, *, ranges: list[RowRange], heldout: RowRange, base: Path
) -> None:
    """Raise ValueError if a local source is not there below `base` or has fewer rows than are asked for."""
    if model.kind == "path" and not (base / model.location / "config.json").is_file():
        raise ValueError(f"model.source: no file {model.location}/config.json; allowed: a model folder")
    if dataset.kind != "path":
        return
    file = base / dataset.location
    needed = count_rows_needed(ranges, heldout)
    num_rows = _count_images(file, dataset) if dataset.holds_images else _count_texts(file, dataset, enough=needed)
    if num_rows is not None and needed > num_rows:
        key = "heldout" if heldout.end > num_rows else "ranges"
        raise ValueError(
            f"{key}: row {needed} is beyond the {num_rows} rows of {dataset.location}; allowed: 0-{num_rows}"
        )


def _count_images(source: Path, dataset: DatasetParams) -> int | None:
    """Return the number of images; None where counting takes long."""
    if not source.is_dir() and source.suffix != ".tar":
        raise ValueError(
            f"dataset.source: got {dataset.location!r} with image_size; allowed: a folder of class folders of images, "
            "or an uncompressed .tar of such"
        )
    if not source.exists():
        raise ValueError(f"dataset.source: no file {dataset.location}; allowed: a folder or .tar of images")
    if source.is_file() and source.stat().st_size > _MAX_TAR_BYTES_TO_COUNT:
        return None
    try:
        return len(list_image_files(source))
    except ValueError as error:
        raise ValueError(f"dataset.source: {dataset.location}: {error}") from None


def _count_texts(file: Path, dataset: DatasetParams, *, enough: int) -> int | None:
    if file.is_dir() or file.suffix == ".tar":
        raise ValueError(
            f"dataset.source: got {dataset.location!r} without image_size; allowed: a .parquet or .jsonl file of "
            "texts, or images with dataset.image_size"
        )
    if file.suffix not in (".parquet", ".jsonl"):
        raise ValueError(f"dataset.source: got {dataset.location!r}; allowed: a .parquet or .jsonl file")
    if not file.is_file():
        raise ValueError(f"dataset.source: no file {dataset.location}; allowed: a .parquet or .jsonl file")
    return _count_rows(file, enough=enough)


def _count_rows(file: Path, *, enough: int) -> int | None:
    """Return the number of rows, of lines no more than `enough`; None where the download stage will refuse the file."""
    if file.suffix == ".jsonl":
        num_rows = 0
        with file.open("rb") as lines:
            while num_rows < enough and (line := lines.readline(_MAX_LINE_BYTES)):
                if len(line) == _MAX_LINE_BYTES and not line.endswith(b"\n"):
                    return None
                num_rows += bool(line.strip())
        return num_rows
    import pyarrow as pa  # here, not above: half a second that only local parquet files need
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError):
        return None
