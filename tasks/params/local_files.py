"""Whether the model and the rows that params.yaml names on this machine are there, before anything starts."""

import glob
from pathlib import Path

from tasks.params.image_files import list_image_files
from tasks.params.prompts import read_template
from tasks.params.sources import DatasetParams, ModelParams, RowRange, count_rows_needed

_WEIGHTS = (".pth", ".pt", ".safetensors")
_BUILDERS: dict[str, tuple[str, dict[str, str]]] = {
    ".parquet": ("parquet", {}), ".jsonl": ("json", {}), ".ndjson": ("json", {}), ".json": ("json", {}),
    ".csv": ("csv", {}), ".tsv": ("csv", {"sep": "\t"}), ".txt": ("text", {}), ".arrow": ("arrow", {}),
}  # fmt: skip
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_TEXT_FILES = f"a file of texts ({', '.join(_BUILDERS)}; all but parquet also packed, as .gz), or a folder of such"
_MAX_TAR_BYTES_TO_COUNT = 2**30


def check_paths(
    model: ModelParams, dataset: DatasetParams, *, ranges: list[RowRange], heldout: RowRange, base: Path
) -> None:
    """Raise ValueError if a local source is not there below `base` or has fewer rows than are asked for."""
    if model.kind == "path" and not (base / model.location / "config.json").is_file():
        is_weights = Path(model.location).suffix in _WEIGHTS and dataset.holds_images
        if not is_weights or not (base / model.location).is_file():
            what = "a file of a ResNet's weights" if is_weights else "a model folder"
            missing = model.location if is_weights else f"{model.location}/config.json"
            raise ValueError(f"model.source: no file {missing}; allowed: {what}")
    if dataset.template is not None:
        read_template(dataset.template, base=base)
    other = dataset.of_heldout
    _check_rows(dataset, {"ranges": ranges, "heldout": [] if other else [heldout]}, base=base)
    if other is not None:
        _check_rows(other, {"heldout": [heldout]}, base=base)
        files = [base / one.location for one in (dataset, other) if one.kind == "path"]
        if len(files) > 1 and files[0].samefile(files[1]):
            raise ValueError(
                f"dataset.heldout_source: {other.location} is the file of dataset.source; allowed: another one, or "
                "null and rows of no range as heldout"
            )


def _check_rows(dataset: DatasetParams, asked: dict[str, list[RowRange]], *, base: Path) -> None:
    """Raise ValueError if the data set has fewer rows than are asked for, by key of params.yaml."""
    if dataset.kind != "path":
        return
    file = base / dataset.location
    needed = count_rows_needed([part for parts in asked.values() for part in parts])
    num_rows = _count_images(file, dataset) if dataset.holds_images else _count_texts(file, dataset)
    if num_rows is not None and needed > num_rows:
        key = next(key for key, parts in reversed(asked.items()) if any(part.end > num_rows for part in parts))
        raise ValueError(
            f"{key}: row {needed} is beyond the {num_rows} rows of {dataset.location}; allowed: 0-{num_rows}"
        )


def _count_images(source: Path, dataset: DatasetParams) -> int | None:
    """Return the number of images; None where counting takes long."""
    if not source.is_dir() and source.suffix != ".tar":
        raise ValueError(
            f"{dataset.key}: got {dataset.location!r} with image_size; allowed: a folder of class folders of images, "
            "or an uncompressed .tar of such"
        )
    if not source.exists():
        raise ValueError(f"{dataset.key}: no file {dataset.location}; allowed: a folder or .tar of images")
    if source.is_file() and source.stat().st_size > _MAX_TAR_BYTES_TO_COUNT:
        return None
    try:
        return len(list_image_files(source))
    except ValueError as error:
        raise ValueError(f"{dataset.key}: {dataset.location}: {error}") from None


def find_builder(file: Path) -> tuple[str, dict[str, str]]:
    """Return which reader of `datasets` is for the file, with its options. Raises ValueError for other files."""
    suffix = file.suffixes[-2] if file.suffix in _PACKED and len(file.suffixes) > 1 else file.suffix
    if suffix not in _BUILDERS:
        raise ValueError(f"got {str(file)!r}; allowed: {_TEXT_FILES}")
    return _BUILDERS[suffix]


def _count_texts(file: Path, dataset: DatasetParams) -> int | None:
    """Return the number of rows; None where only reading tells."""
    try:
        # datasets takes "::" for the end of an archive's name, and folders and what is in archives for patterns.
        is_pattern = glob.has_magic(whole := str(file.resolve())) and (file.is_dir() or file.suffix in _PACKED)
        if is_pattern or "::" in whole:
            raise ValueError(f"got {whole!r}; allowed: a path without :: and, of a folder or packed file, [ * ?")
        if file.is_dir():
            if not any(path.suffix in _BUILDERS or path.suffix in _PACKED for path in file.rglob("*")):
                raise ValueError(f"got {dataset.location!r}; allowed: {_TEXT_FILES}, or images with dataset.image_size")
            return None
        find_builder(file)
        if dataset.config is not None:
            raise ValueError(f"got the file {dataset.location!r} with dataset.config; allowed: null, or a folder")
        if not file.is_file():
            raise ValueError(f"no file {dataset.location}; allowed: {_TEXT_FILES}")
    except ValueError as error:
        raise ValueError(f"{dataset.key}: {error}") from None
    if file.suffix != ".parquet":
        return None
    import pyarrow as pa  # here, not above: half a second that only local parquet files need
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError):
        return None
