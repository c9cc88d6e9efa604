"""Whether the model and the rows that params.yaml names on this machine are there, before anything starts."""

from pathlib import Path

from tasks.params.image_files import list_image_files
from tasks.params.prompts import read_template
from tasks.params.sources import DatasetParams, ModelParams, RowRange, count_rows_needed

_WEIGHTS = (".pth", ".pt", ".safetensors")
_MAX_LINE_BYTES = 16 * 2**20
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
    num_rows = _count_images(file, dataset) if dataset.holds_images else _count_texts(file, dataset, enough=needed)
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


def _count_texts(file: Path, dataset: DatasetParams, *, enough: int) -> int | None:
    if file.is_dir() or file.suffix == ".tar":
        raise ValueError(
            f"{dataset.key}: got {dataset.location!r} without image_size; allowed: a .parquet or .jsonl file of "
            "texts, or images with dataset.image_size"
        )
    if file.suffix not in (".parquet", ".jsonl"):
        raise ValueError(f"{dataset.key}: got {dataset.location!r}; allowed: a .parquet or .jsonl file")
    if not file.is_file():
        raise ValueError(f"{dataset.key}: no file {dataset.location}; allowed: a .parquet or .jsonl file")
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
