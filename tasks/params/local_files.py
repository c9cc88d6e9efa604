"""Whether the model and the rows that params.yaml names on this machine are there, before anything starts."""

import contextlib
import glob
import hashlib
import itertools
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.params.prompts import read_template
from tasks.params.sources import DatasetParams, ModelParams, RowRange
from training.process.files import digest_file, digest_json

_WEIGHTS = (".pth", ".pt", ".safetensors")
CSV: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
"""An empty field alone is null: a class may be called None, a text may be N/A."""
_BUILDERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".parquet": ("parquet", {}), ".jsonl": ("json", {}), ".ndjson": ("json", {}), ".json": ("json", {}),
    ".csv": ("csv", CSV), ".tsv": ("csv", {"sep": "\t", **CSV}), ".txt": ("text", {}), ".arrow": ("arrow", {}),
}  # fmt: skip
PACKED = (".gz", ".bz2", ".xz", ".zst")
_TEXT_FILES = f"a file of texts ({', '.join(_BUILDERS)}; all but parquet also packed, as .gz), or a folder of such"
IN_GIT_LFS = b"version https://git-lfs"
"""What a file begins with that Git LFS has not fetched."""
_IMAGE_FILES = "a folder of class folders of images, or an uncompressed .tar of such"
_HEADS = {"json": 0, "text": 0, "csv": 1}
"""Reader -> the lines that stand before the rows, none of which is shorter than a line."""
_MAX_BYTES_TO_COUNT, _MAX_TAR_BYTES_TO_COUNT = 2**28, 2**30
_MAX_CONFIG_BYTES = 2**20
SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"
"""What save_to_disk of `datasets` writes beside the rows, and beside the folders of splits."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_MAX_CLASS_NAME = 100
_END_BYTES = 2**20
"""Of what follows the last file of a tar, read at once."""
_WRITTEN = ("data", "reports", ".work")
_HIDDEN = re.compile(r"(^|/)\.(?!\./)")
"""A file or folder that an editor, a notebook or a system has put there; `..` is none."""


def check_paths(params: Any, base: Path) -> None:
    """Raise ValueError if a local source is not there below `base`, or has fewer rows or positions than asked for."""
    model, dataset, heldout = params.model, params.dataset, params.heldout
    other = dataset.of_heldout
    for key, source in (("model.source", model), (dataset.key, dataset), ("dataset.heldout_source", other)):
        for folder in _WRITTEN if source is not None and source.kind == "path" else ():
            if (base / source.location).resolve().is_relative_to((base / folder).resolve()):
                raise ValueError(
                    f"{key}: {source.location} is in {folder}/, where stages write and delete what they do not know; "
                    "allowed: a folder of yours, move it there"
                )
    if model.kind == "path" and not (base / model.location / "config.json").is_file():
        is_weights = Path(model.location).suffix in _WEIGHTS and dataset.holds_images
        if not is_weights or not (base / model.location).is_file():
            what = "a file of a ResNet's weights" if is_weights else "a model folder"
            missing = model.location if is_weights else f"{model.location}/config.json"
            raise ValueError(f"model.source: no file {missing}; allowed: {what}")
    if model.kind == "path" and not dataset.holds_images:
        require_positions(model, base / model.location, params.train.seq_len)
    if dataset.template is not None:
        read_template(dataset.template, base=base)
    _check_rows(dataset, {"ranges": params.ranges, "heldout": [] if other else [heldout]}, base=base)
    if other is not None:
        _check_rows(other, {"heldout": [heldout]}, base=base)
        files = [(base / item.location).resolve() for item in (dataset, other) if item.kind == "path"]
        is_within = any(file.is_relative_to(place) for file, place in itertools.permutations(files, 2))
        if is_within or (len(files) > 1 and files[0].samefile(files[1])):
            raise ValueError(
                f"dataset.heldout_source: {other.location} is dataset.source, or one of them is in the other; allowed: "
                "a file or folder beside it, or null and rows of no range as heldout"
            )


def require_positions(model: ModelParams, folder: Path, seq_len: int) -> None:
    """Raise ValueError if the config.json of a model of texts says that it is for shorter rows.

    Whatever else may be wrong with the file is asked by who reads the model.
    """
    most = None
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        with (folder / "config.json").open("rb") as file:
            written = json.loads(file.read(_MAX_CONFIG_BYTES))
        # Elsewhere n_positions is no limit.
        most = written.get("n_positions" if "n_embd" in written else "max_position_embeddings")
    if isinstance(most, int) and 0 < most < seq_len:
        raise ValueError(
            f"train.seq_len: {seq_len}, and model.source {model.source} has positions for {most}; use fewer, or a "
            "model for longer rows"
        )


def _check_rows(dataset: DatasetParams, asked: dict[str, list[RowRange]], *, base: Path) -> None:
    """Raise ValueError if the data set has fewer rows than are asked for, by key of params.yaml."""
    if dataset.kind != "path":
        return
    needed = max(part.end for parts in asked.values() for part in parts)
    try:
        source = base / dataset.location
        if not source.is_file() and not source.is_dir():
            allowed = _IMAGE_FILES if dataset.holds_images else _TEXT_FILES
            raise ValueError(f"no file {dataset.location}; allowed: {allowed}")
        num_rows = _count_images(source, dataset) if dataset.holds_images else _count_texts(source, dataset, needed)
    except ValueError as error:
        raise ValueError(f"{dataset.key}: {error}") from None
    if num_rows is not None and needed > num_rows:
        key = next(key for key, parts in reversed(asked.items()) if any(part.end > num_rows for part in parts))
        raise ValueError(
            f"{key}: row {needed} is beyond the {num_rows} rows of {dataset.location}; allowed: 0-{num_rows}"
        )


def _count_images(source: Path, dataset: DatasetParams) -> int | None:
    """Return the number of images; None where counting takes long."""
    if source.is_file() and source.suffix != ".tar":
        raise ValueError(f"got {dataset.location!r} with image_size; allowed: {_IMAGE_FILES}")
    if source.is_file() and source.stat().st_size > _MAX_TAR_BYTES_TO_COUNT:
        return None
    try:
        return len(list_image_files(source))
    except ValueError as error:
        raise ValueError(f"{dataset.location}: {error}") from None


def find_builder(file: Path) -> tuple[str, dict[str, Any]]:
    """Return which reader of `datasets` is for the file, with its options. Raises ValueError for other files."""
    is_packed = file.suffix in PACKED and len(file.suffixes) > 1
    suffix = (file.suffixes[-2] if is_packed else file.suffix).lower()
    if suffix not in _BUILDERS or (is_packed and suffix == ".parquet"):
        raise ValueError(f"got {str(file)!r}; allowed: {_TEXT_FILES}")
    return _BUILDERS[suffix]


def _count_texts(file: Path, dataset: DatasetParams, needed: int) -> int | None:
    """Return the number of rows, or how many there may be at most; None where only reading tells.

    Lines are counted up to those that are needed.
    """
    # datasets takes "::" for the end of an archive's name, and folders and what is in archives for patterns.
    is_pattern = glob.has_magic(whole := str(file.resolve())) and (file.is_dir() or file.suffix in PACKED)
    if is_pattern or "::" in whole:
        raise ValueError(f"got {whole!r}; allowed: a path without :: and, of a folder or packed file, [ * ?")
    if dataset.reads_part and not has_splits(dataset, file):
        raise ValueError(
            f"got {dataset.location!r}, which has neither, with dataset.config {dataset.config} and dataset.split "
            f"{dataset.split}; allowed: null and train, or a folder as on the Hub"
        )
    if file.is_dir():
        if (file / _SAVED_SPLITS).exists():
            raise ValueError(f"got {dataset.location!r}, with a folder for each split; allowed: one of these folders")
        if (file / SAVED).is_file():
            list_saved_files(file)
        if not any(path.suffix in _BUILDERS or path.suffix in PACKED for path in file.rglob("*")):
            raise ValueError(f"got {dataset.location!r}; allowed: {_TEXT_FILES}, or images with dataset.image_size")
        return None
    reader, _ = find_builder(file)
    if reader != "parquet":
        return None if file.suffix in PACKED or reader not in _HEADS else _count_lines(file, reader, needed)
    import pyarrow as pa  # here, not above: half a second that only local parquet files need
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError):
        return None


def has_splits(dataset: DatasetParams, place: Path) -> bool:
    """Return whether the data set, which is at `place` if it is local, can have splits, as dataset.split names them."""
    is_folder = dataset.kind == "path" and place.is_dir() and not (place / SAVED).is_file()
    return dataset.kind == "hub" or (is_folder and not dataset.holds_images)


def list_saved_files(folder: Path) -> list[str]:
    """Return the names of the files that save_to_disk wrote last; raises ValueError if one of them is not there.

    Those of an earlier time, with another number of shards, stay beside them.
    """
    names = list[str]()
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError), (folder / SAVED).open("rb") as file:
        names = [str(item["filename"]) for item in json.loads(file.read(_MAX_CONFIG_BYTES))["_data_files"]]
    lacking = [name for name in names if name != Path(name).name or not (folder / name).is_file()]
    if lacking or not names:
        what = f"{lacking[0][:80]!r}, which is not" if lacking else "no files"
        raise ValueError(f"{SAVED} names {what} beside it; allowed: a folder as save_to_disk writes it")
    return names


def _count_lines(file: Path, reader: str, needed: int) -> int | None:
    """Return how many rows there may be at most, or more than are needed; None where lines do not tell."""
    if file.stat().st_size > _MAX_BYTES_TO_COUNT:
        return None
    try:
        with file.open(encoding="utf-8-sig") as opened:
            rows = (line for line in opened if reader != "json" or line.strip())
            lines = itertools.islice(rows, needed + 1)
            if reader != "json":
                return max(sum(1 for _ in lines) - _HEADS[reader], 0)
            is_row = [line[0] == "{" and '}{"' not in line for line in lines]
    except UnicodeDecodeError:
        return None
    return len(is_row) if len(is_row) > 1 and all(is_row) else None


@dataclass(frozen=True)
class ImageFile:
    """One image of the source."""

    name: str
    """Its path below the source, with slashes."""
    size: int
    """Bytes."""
    offset: int | None
    """Where in the tar it begins; None in a folder."""

    @property
    def label(self) -> str:
        """The class: the folder that the image is directly in."""
        return PurePosixPath(self.name).parent.name

    @property
    def suffix(self) -> str:
        """Of its name, in small letters."""
        return PurePosixPath(self.name).suffix.lower()


def list_image_files(source: Path, *, left_out: Counter[str] | None = None) -> list[ImageFile]:
    """Return the images in the order of the rows: a function of their names alone.

    Hidden files and folders are none. Files of other suffixes are not either, and counted by suffix in `left_out`.

    What stands above the class folders, such as train/ and val/, comes one after another by name. Within it images are
    in the order of their names' sha256, so that every range has images of all classes.

    Raises ValueError if an image is in no class folder, there are fewer than two classes, or the tar is none or not
    whole; OSError if a folder cannot be read.
    """
    if source.is_file():
        results = list(_list_tar(source))
    else:
        sizes = {path.relative_to(source).as_posix(): path.stat().st_size for path in walk_files(source)}
        results = [ImageFile(name, size, None) for name, size in sizes.items()]
    # A name that stands twice in a tar is the later file, as it is when the tar is unpacked.
    named = {file.name: file for file in results if not _HIDDEN.search(file.name)}
    files = [file for file in named.values() if file.suffix in SUFFIXES]
    if left_out is not None:
        left_out.update(file.suffix for file in named.values() if file.suffix not in SUFFIXES)
    if not files:
        raise ValueError(f"no images in it; allowed: CLASS/NAME with one of {', '.join(SUFFIXES)}")
    for file in files:
        if not 1 <= len(file.label) <= _MAX_CLASS_NAME or not file.name.isprintable():
            raise ValueError(
                f"{file.name[-80:]!r} is in no class folder; allowed: CLASS/NAME, printable, a class of at most "
                f"{_MAX_CLASS_NAME} characters"
            )
    labels = {file.label for file in files}
    if len(labels) < 2:
        raise ValueError(
            f"all images are of one class, {labels.pop()!r}; allowed: a folder for each of several classes"
        )

    def place(file: ImageFile) -> tuple[str, bytes]:
        return PurePosixPath(file.name).parent.parent.as_posix(), hashlib.sha256(file.name.encode()).digest()

    return sorted(files, key=place)


def _list_tar(source: Path) -> Iterator[ImageFile]:
    """Yield the plain files; nothing is unpacked to a disk, so links and devices have no meaning."""
    try:
        # "r:": a compressed one could be a bomb, and images are compressed already.
        with tarfile.open(source, "r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse():
                    name = PurePosixPath(member.name).as_posix().lstrip("/")
                    yield ImageFile(name, member.size, member.offset_data)
        # tarfile takes for the end what is no header: one that is cut or damaged, and the end of the first of several.
        with source.open("rb") as file:
            file.seek(archive.offset)
            has_end = len(end := file.read(tarfile.BLOCKSIZE)) == tarfile.BLOCKSIZE
            while end and not end.strip(b"\0"):
                end = file.read(_END_BYTES)
        if end or not has_end:
            raise ValueError(f"cut, damaged or several in one at byte {archive.offset}")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise ValueError(f"no readable tar ({error}); allowed: an uncompressed .tar") from None


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and those in it; links are followed, and no folder is entered twice.

    Raises OSError if one of them cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    entered = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        real = os.path.realpath(place)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders.sort()
        yield from (file for name in names if (file := Path(place, name)).is_file())


def digest_source(path: Path) -> str | None:
    """Return the sha256 of a local file or of a folder's files by name; None if there is nothing."""
    if path.is_file():
        return digest_file(path)
    if path.is_dir():
        files = sorted(walk_files(path))
        return digest_json({file.relative_to(path).as_posix(): digest_file(file) for file in files})
    return None
