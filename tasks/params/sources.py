"""The sections `model` and `dataset` of params.yaml, and ranges of rows: where everything comes from."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    field_validator,
    model_validator,
)

from tasks.params.choices import has_labels, read_unit, require_name
from tasks.params.prompts import COLUMNS, require_template
from tasks.params.section import Section

# validate_repo_id of huggingface_hub, without importing it: 1-96 characters, no "--", no "..".
_HUB_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?")
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


BUILTIN_CLASSIFIERS = ("tiny-modernbert",)
BUILTIN_IMAGE_MODELS = ("resnet18", "resnet50", "vit-b-16")
BUILTIN_LANGUAGE_MODELS = ("tiny-qwen2",)
BUILTIN_MODELS = (*BUILTIN_LANGUAGE_MODELS, *BUILTIN_CLASSIFIERS, *BUILTIN_IMAGE_MODELS)
BUILTIN_IMAGES = ("digits",)
BUILTIN_INSTRUCTIONS = ("instructions",)
BUILTIN_DATASETS = ("docstrings", *BUILTIN_INSTRUCTIONS, *BUILTIN_IMAGES)
BUILTIN_LABELS = ("package",)
BUILTIN_MAX_ROWS = 6_000
"""Rows that the built-in texts can give at most, on any install of the pinned packages."""
_SPLIT = "split:"
"""Before the name of another split of the same Hub source."""
_ALL = "train"
"""The split that all rows are, where a source has no others."""
_MOST_ROWS = 2**31 - 1
"""What the work ledger can number (training/record/segment.py)."""
_BUILTIN_ROWS = {"docstrings": BUILTIN_MAX_ROWS, "instructions": 4_000, "digits": 1_797}


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
                allowed = ", ".join(f"builtin:{name}" for name in builtins)
                raise ValueError(f"source: no built-in named {location!r}; allowed: {allowed}")
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
    weights: Literal["pretrained", "random"] = "pretrained"
    """random: from scratch, with config.json and the tokenizer of the source alone; language models only."""
    norm: Literal["group", "sync_batch"] | None = None
    """ResNets only: sync_batch: batch normalisation over the rows that all ranks have at once; null: group."""

    @field_validator("norm", mode="before")
    @classmethod
    def _refuse_batch(cls, value: Any) -> Any:
        if value == "batch":
            raise ValueError(
                "got batch, whose running statistics are of each rank's own rows, so that what is saved and evaluated "
                "depends on the number of ranks; allowed: sync_batch, over the rows of all ranks, or group"
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_source(BUILTIN_MODELS)
        require_name("name", self.name)
        if self.weights == "random" and self.kind == "builtin":
            raise ValueError(
                f"weights: got random for {self.source}, whose weights are; allowed: none for built-in models"
            )
        return self


def require_model_for(workload: str, model: ModelParams) -> None:
    """Raise ValueError for a built-in model that does not do what the workload learns."""
    if model.weights == "random" and (has_labels(workload) or read_unit(workload) == "image"):
        raise ValueError(
            f"model.weights: got random with workload {workload}; allowed: pretrained, or a language model"
        )
    if model.norm is not None and (read_unit(workload) != "image" or "vit" in model.location.split("-")[:1]):
        raise ValueError(
            f"model.norm: got {model.norm} for {model.source} with workload {workload}; allowed: null, or a ResNet"
        )
    does: Sequence[str] = BUILTIN_CLASSIFIERS if has_labels(workload) else BUILTIN_LANGUAGE_MODELS
    if read_unit(workload) == "image":
        does = BUILTIN_IMAGE_MODELS
    if model.kind == "builtin" and model.location not in does:
        allowed = ", ".join(f"builtin:{name}" for name in does)
        raise ValueError(f"model.source: got {model.source} with workload {workload}; allowed: {allowed}")


class DatasetParams(Source):
    """Where the rows come from."""

    split: str = _ALL
    """Hub sources and folders of texts only: the split to read, or several, one after another: train+test."""
    config: str | None = None
    """Hub sources and folders only: which of its configs (subsets), if it has several; null: its default one."""
    heldout_source: str | None = None
    """Where the rows of `heldout` stand, if they are none of `source`: `split:NAME` (of a Hub source, such as
    split:test) or `path:FILE_OR_FOLDER`, with the same columns; null: they are rows of `source`, of no range."""
    _key: str = PrivateAttr("source")
    text_column: str = Field(default="text", min_length=1)
    """The column that holds the text of a row."""
    add_special_tokens: bool = True
    """Texts of a language model have what the tokenizer puts around a text, such as a BOS; false: an end alone."""
    label: str | None = None
    """The column that holds the class of a row, a text or a whole number, for a workload that learns classes."""
    template: str | None = None
    """Rows are instructions with responses: how they become prompts, as `dolly`, `plain`, `chat` (the tokenizer's own
    template) or `path:FILE`, a text with {instruction} and perhaps {context}; null: rows are texts."""
    instruction_column: str | None = None
    """Instructions only: the column that says what to do; null: `instruction`."""
    context_column: str | None = None
    """Instructions only: the column of what it is about, empty where there is nothing; null: `context` or `input`, if
    there is such a column."""
    response_column: str | None = None
    """Instructions only: the column that is to be learned; null: `response` or `output`."""
    image_size: int | None = Field(default=None, ge=8, le=1024)
    """Rows are images, and their middle square is resized to so many pixels a side, once; null: rows are texts."""

    @property
    def key(self) -> str:
        """The key of params.yaml that names it."""
        return f"dataset.{self._key}"

    @property
    def place(self) -> str:
        """What messages call it: its key, and its value."""
        return f"{self.key} {self.source}" + (
            f" split {self.split}" if self._key != "source" and self.kind == "hub" else ""
        )

    @property
    def reads_part(self) -> bool:
        """Whether it names a config or a split, which not every source has."""
        return self.config is not None or self.split != _ALL

    @property
    def of_heldout(self) -> "DatasetParams | None":
        """The data set of the held-out rows, read as this one is; None where they are rows of this one."""
        if self.heldout_source is None:
            return None
        changes = {"source": self.heldout_source, "revision": None, "config": None, "split": _ALL}
        if self.heldout_source.startswith(_SPLIT):
            changes = {"split": self.heldout_source.removeprefix(_SPLIT)}
        other = self.model_copy(update={**changes, "heldout_source": None})
        other._key = "heldout_source"
        return other

    @property
    def holds_images(self) -> bool:
        """Whether its rows are images: a folder of class folders, a tar of such, or built-in ones."""
        return self.image_size is not None

    @property
    def holds_instructions(self) -> bool:
        """Whether its rows are instructions, each with a response."""
        return self.template is not None

    @property
    def named_columns(self) -> dict[str, str | None]:
        """Key -> the column that it names, in the order in which they are read; None where it is looked for."""
        keys = COLUMNS if self.holds_instructions else ("text_column", "label")[: 1 + (self.label is not None)]
        return {key: getattr(self, key) for key in keys}

    @property
    def max_rows(self) -> int | None:
        """Rows that a built-in data set can give at most; None for others."""
        return _BUILTIN_ROWS[self.location] if self.kind == "builtin" else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_source(BUILTIN_DATASETS)
        for split in (splits := self.split.split("+")):
            require_name("split", split)
        if len({*splits}) < len(splits):
            raise ValueError(f"split: got {self.split[:80]!r}; allowed: each split once")
        if self.reads_part and (self.kind == "builtin" or self.holds_images):
            raise ValueError(
                f"config, split: got {str(self.config)[:80]!r} and {self.split[:80]!r}; allowed: null and {_ALL}, "
                "but for a hub: source or a folder of texts"
            )
        if self.label in ("", self.text_column):
            raise ValueError(f"label: got {self.label!r}; allowed: the name of another column than text_column")
        if self.kind == "builtin" and self.label not in (None, *BUILTIN_LABELS):
            raise ValueError(f"label: got {self.label[:80]!r}; allowed: {', '.join(BUILTIN_LABELS)}")
        if not self.add_special_tokens and (self.label or self.template or self.holds_images):
            raise ValueError("add_special_tokens: got false; allowed: true, but for plain texts of a language model")
        self._check_instructions()
        self._check_heldout_source()
        if self.kind == "hub" or (self.kind == "builtin" and self.location not in BUILTIN_IMAGES):
            if self.holds_images:
                raise ValueError(f"image_size: got {self.image_size} for texts; allowed: null")
        elif self.kind == "builtin" and not self.holds_images:
            raise ValueError("image_size: got null for images; allowed: pixels of a side, such as 32")
        return self

    def _check_heldout_source(self) -> None:
        """Raise ValueError unless the held-out rows, where they have a source, have another than the rest."""
        if (other := self.heldout_source) is None:
            return
        kind, _, location = other.partition(":")
        if f"{kind}:" == _SPLIT and self.kind == "hub":
            require_name("heldout_source", location)
            if location in self.split.split("+"):
                raise ValueError(
                    f"heldout_source: got {other}, which is trained on; allowed: another split than {self.split}"
                )
        elif kind != "path" or not location or "\0" in location or other == self.source:
            raise ValueError(
                f"heldout_source: got {other[:80]!r} with source {self.source[:80]!r}; allowed: another file as "
                "path:FILE, or split:NAME of a hub: source"
            )

    def _check_instructions(self) -> None:
        """Raise ValueError unless what is said of prompts fits the rows."""
        named = {key: column for key in COLUMNS if (column := getattr(self, key)) is not None}
        if self.template is None:
            for key, column in named.items():
                raise ValueError(
                    f"{key}: got {column[:80]!r} without template; allowed: null, rows are no instructions"
                )
            if self.kind == "builtin" and self.location in BUILTIN_INSTRUCTIONS:
                raise ValueError("template: got null for instructions; allowed: dolly, plain, chat or path:FILE")
            return
        require_template("template", self.template)
        if self.kind == "builtin" and (self.location not in BUILTIN_INSTRUCTIONS or named):
            raise ValueError(
                f"template: got {self.template[:80]!r} for {self.source}; allowed: builtin:instructions without names "
                "of columns, or a hub: or path: data set"
            )
        if "text_column" in self.model_fields_set and self.text_column != "text":
            raise ValueError(
                f"text_column: got {self.text_column[:80]!r} with template; allowed: instruction_column, "
                "context_column and response_column"
            )
        if len(set(named.values())) < len(named) or "" in named.values():
            raise ValueError(f"{', '.join(named)}: got {list(named.values())}; allowed: a column for each part")
