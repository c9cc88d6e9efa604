"""What the ranks of one cell are told: a JSON file, read strictly."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LOSS_CHUNK_ROWS = {"cpu": 384, "cuda": 2048}
"""Device -> rows of logits that exist at once unless params.yaml says so. A CPU's cache holds no more; with fewer on a
GPU the matrix products become too small to be fast."""

STORE = "DDP_COMPARE_STORE"
"""Environment variable, where all ranks are on this machine: the file, in a folder of their own, in which they meet."""


@dataclass(frozen=True, kw_only=True)
class SegmentConfig:
    """One range x one epoch, in the order of the run."""

    range: str
    """Rows of the data set, `start-end`, end exclusive."""
    epoch: int
    """Pass over the range, from 1."""
    slice_dir: Path
    """Folder with the range's tokens."""
    fingerprint: str
    """Digest of everything that the segment's content depends on; its address in the work folder."""
    schedule_begin: int = 0
    """Steps of the learning rate's schedule before this segment's first."""
    schedule_total: int = 0
    """Steps of the whole schedule; 0: those of the segment, whatever their number."""
    checked_steps: tuple[int, ...] = ()
    """Steps, from 1, whose updates are computed a second time (state/update_keeper.py)."""
    optional_steps: tuple[int, ...] = ()
    """Further ones, unless the checks so far have taken long."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The whole run of one cell."""

    cell: str
    """Name of the cell."""
    strategy: str
    """Name of a folder in training/strategies/."""
    options: Mapping[str, Any]
    """Options of the strategy, as its file names them under OPTIONS."""
    world_size: int
    """Number of ranks."""
    workload: str
    """Name of a file in training/workloads/; with dots, of a module anywhere, as no params.yaml can."""
    device: Literal["cpu", "cuda"]
    """Where the model lives."""
    oversubscribe: bool
    """Whether ranks may share a GPU."""
    model_dir: Path
    """Folder of the base model."""
    model_name: str
    """Short name of the model in checkpoint files."""
    work_dir: Path
    """Folder for segments, partial checkpoints and the event stream; the only place written to."""
    segments: tuple[SegmentConfig, ...]
    """All segments of the run, in order; the finished ones are reused."""
    heldout_dir: Path
    """Folder with the held-out rows' slice."""
    heldout_digest: str
    """Digest of that slice; empty: nothing is evaluated while these ranks train."""
    statistics_rows: int
    """Rows that one forward of batch normalisation is over, those of all ranks together; 0: the model has none."""

    # The values of the work: what each means stands in tasks/params/train.py, and a test holds the two together.
    global_batch_size: int
    micro_batch_size: int
    optimizer: Literal["adamw", "sgd"]
    momentum: float
    adam_beta1: float
    adam_beta2: float
    learning_rate: float
    schedule: Literal["constant", "linear", "cosine", "wsd"]
    decay_steps: int
    schedule_floor: float
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float
    precision: Literal["fp32", "bf16", "fp16"]
    seq_len: int
    augment: Literal["none", "flip", "flip_shift"]
    packing: bool
    loss_chunk_rows: int
    activation_checkpointing: Literal["none", "layers"]
    adapter: Mapping[str, Any] | None
    compile: bool
    seed: int
    exact: bool
    threads_per_rank: int
    log_every_steps: int
    checkpoint_every_steps: int
    eval_every_steps: int
    keep: Literal["all", "epochs", "last"] = "all"
    max_check_gib: float = 40.0
    """The most that the state before and after an update may take on disk."""

    def as_json(self) -> dict[str, Any]:
        """Return what its JSON file holds."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return plain


def read_config(path: Path) -> TrainingConfig:
    """Return the run that the JSON file describes.

    Raises ValueError, naming the key, for an unknown or missing key or a value of another type.
    """
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}; needed: the JSON file that the train stage writes") from None
    return parse_config(raw, where=str(path))


def parse_config(raw: Any, *, where: str = "config") -> TrainingConfig:
    """Return the run that the content of a JSON file describes; `where` it stands is named in a ValueError as above."""
    config: TrainingConfig = _parse_object(TrainingConfig, raw, where=where)
    if not config.segments:
        raise ValueError(f"{where}: segments is empty; allowed: at least one")
    return config


def _parse_object(kind: Any, raw: Any, *, where: str) -> Any:
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: got {type(raw).__name__}; allowed: an object")
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    names = [field.name for field in fields]
    needed = [field.name for field in fields if field.default is dataclasses.MISSING]
    unknown, missing = sorted(raw.keys() - set(names)), [name for name in needed if name not in raw]
    if unknown or missing:
        raise ValueError(f"{where}: unknown keys {unknown}, missing keys {missing}; allowed: exactly {names}")
    return kind(**{name: _parse_value(hints[name], raw[name], where=f"{where}: {name}") for name in raw})


def _parse_value(kind: Any, value: Any, *, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is types.UnionType:
        # Of a mapping and nothing.
        return None if value is None else _parse_value(typing.get_args(kind)[0], value, where=where)
    if origin is Literal:
        # A JSON 1 is no true.
        if not any(value == arg and type(value) is type(arg) for arg in typing.get_args(kind)):
            raise ValueError(f"{where}: got {value!r}; allowed: {', '.join(map(str, typing.get_args(kind)))}")
        return value
    if origin is tuple and isinstance(value, list):
        item = typing.get_args(kind)[0]
        parse = _parse_object if dataclasses.is_dataclass(item) else _parse_value
        return tuple(parse(item, part, where=f"{where}[{index}]") for index, part in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return value
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) is int:
        return float(value)
    # `type() is`, since a JSON true is no number.
    if isinstance(kind, types.GenericAlias) or type(value) is not kind:
        raise ValueError(f"{where}: got {value!r}; allowed: {getattr(kind, '__name__', kind)}")
    return value
