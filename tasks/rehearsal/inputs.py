"""What a rehearsal is made from: config.json of the model, and rows as sliced, or as long as they may be."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.data.sources.image_models import make_config
from tasks.inputs.snapshot import select_sources
from tasks.params import Params
from tasks.params.choices import has_labels, read_unit
from tasks.params.local_files import check_paths, require_positions
from tasks.params.sources import BUILTIN_CLASSIFIERS, BUILTIN_IMAGE_MODELS
from tasks.process.bounded_child import BoundedChild
from tasks.process.failure import ConfigurationError, StageError
from tasks.ranks.cell_ranks import make_ranks_config
from tasks.records.manifests import BaseModelManifest, RawManifest, SlicesManifest
from tasks.rehearsal.longest_rows import write_longest_rows
from training.config import SegmentConfig, TrainingConfig
from training.process.files import write_json

_RAW, _BASE_MODEL, _SLICES = Path("data/raw"), Path("data/base_model"), Path("data/slices")
_NUM_CLASSES = 1_000
_CLASSES_ASSUMED = f"No images are there yet: {_NUM_CLASSES:,} classes are assumed; `dvc repro download` has yours."
_ROWS_ASSUMED = "No rows are sliced yet: each is taken to be as long as it may be; `dvc repro slice` has them."


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Where things are."""

    model_dir: Path
    """With config.json."""
    slices: dict[str, Path]
    """Range -> its rows."""
    assumed: tuple[str, ...] = ()
    """What is taken for granted as long as it is not at hand, a sentence each."""

    def make_config(self, params: Params, cell: str) -> TrainingConfig:
        """Return what the ranks of a cell would be told on a GPU."""
        segments = (
            SegmentConfig(range=part, epoch=1, slice_dir=folder, fingerprint="") for part, folder in self.slices.items()
        )
        return make_ranks_config(
            cell, params, device="cuda", base_model=self.model_dir, work=Path("."), segments=segments
        )


@contextlib.contextmanager
def gather_inputs(params: Params) -> Iterator[Inputs]:
    """Yield what there is; raises ConfigurationError if the model's config is not to be had."""
    with tempfile.TemporaryDirectory() as scratch:
        model_dir, assumed = _find_model(params, Path(scratch))
        _require_extent(params, model_dir)
        slices = _find_slices(params)
        if slices is None and read_unit(params.workload) != "image":
            assumed += (_ROWS_ASSUMED,)
        number = params.train.global_batch_size
        rows = slices or {f"0-{number}": write_longest_rows(Path(scratch) / "rows", params, number)}
        yield Inputs(model_dir=model_dir, slices=rows, assumed=assumed)


def _require_extent(params: Params, model_dir: Path) -> None:
    """Raise ConfigurationError if the model has fewer positions than asked for, or the data, if it is there, rows."""
    try:
        if read_unit(params.workload) != "image":
            require_positions(params.model, model_dir, params.train.seq_len)
        if os.path.exists(params.dataset.location):
            check_paths(params, Path())
    except ValueError as error:
        raise ConfigurationError(f"params.yaml: {error}") from None


def _find_model(params: Params, scratch: Path) -> tuple[Path, tuple[str, ...]]:
    """Return a folder with the config.json and nothing else that is read, and what is assumed of it."""
    manifest, model = BaseModelManifest.read_if_there(_BASE_MODEL), params.model
    # It was downloaded with the rows.
    rows = RawManifest.read_if_there(_RAW)
    is_own = rows is not None and rows.made_of == select_sources(params)
    folder = _BASE_MODEL if is_own and manifest is not None and manifest.source == model.source else None
    if folder is None and model.kind == "builtin" and model.location in BUILTIN_IMAGE_MODELS:
        (scratch / "model").mkdir()
        classes, size = [str(number) for number in range(_NUM_CLASSES)], params.dataset.image_size
        config = make_config(model.location, classes, image_size=size, norm=model.norm)
        write_json(scratch / "model" / "config.json", config)
        return scratch / "model", (_CLASSES_ASSUMED,)
    if folder is None and model.location not in BUILTIN_CLASSIFIERS:
        is_classifier = None if read_unit(params.workload) == "image" else has_labels(params.workload)
        folder = _fetch_model(params, scratch / "fetched", is_classifier=is_classifier)
    if folder is None or not (folder / "config.json").is_file():
        raise ConfigurationError(
            f"model.source: got {model.source}, whose config.json is not in {_BASE_MODEL}; needed: "
            "`dvc repro download` for this params.yaml, or a path: to a folder with it"
        )
    (scratch / "model").mkdir()
    shutil.copyfile(folder / "config.json", scratch / "model" / "config.json")
    return scratch / "model", ()


def _fetch_model(params: Params, folder: Path, *, is_classifier: bool | None) -> Path:
    """Return a folder with the config.json of a model, filled with nothing else, or with a built-in one.

    A folder of one's own with weights is tried as the stage `download` does.
    """
    from tasks.data.fitness import try_weights
    from tasks.data.sources.models import count_bytes, fetch_config, store_model
    from tasks.services.hub import pin_commit

    model, own = params.model, Path(params.model.location)
    if model.kind == "builtin":
        return store_model(model)
    try:
        # The commit stays, so that what is rehearsed is what will be downloaded.
        commit = None if model.revision is None else pin_commit(model.location, model.revision, kind="model")
        fetch_config(model, folder, commit=commit, is_classifier=is_classifier)
        if is_classifier is not None and model.kind == "path" and (size := count_bytes(own, model)):
            with BoundedChild() as child:
                child.run(try_weights, params, own, what=f"model.source {model.source}", num_bytes=size)
    except StageError as error:
        remedy = "; config.json is all that is needed, and a path: to a folder with it will do" * (model.kind == "hub")
        raise ConfigurationError(f"{error}{remedy}") from None
    return folder


def _find_slices(params: Params) -> dict[str, Path] | None:
    """Return the folder of every range; None unless all are sliced, of the sources of this params.yaml."""
    manifest = SlicesManifest.read_if_there(_SLICES)
    wanted = [str(part) for part in params.ranges]
    if manifest is None or manifest.made_of != select_sources(params) or not set(wanted) <= manifest.slices.keys():
        return None
    return {part: _SLICES / part for part in wanted}
