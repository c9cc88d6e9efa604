"""Slices of images: one array of pixels that is memory-mapped, so that no epoch decodes anything."""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tasks.data.linked_slices import link_slices
from tasks.data.sources.parquet import read_groups
from tasks.data.sources.row_policy import QUARANTINED_IMAGES, describe_faults
from tasks.params import Params
from tasks.params.sources import RowRange
from tasks.process.failure import ConfigurationError, DataError
from tasks.records.slices import SliceManifest, SlicesManifest
from tasks.records.sources import ROWS, RawManifest
from tasks.store.kept import fill_folder, is_kept
from training.process.files import digest_file, digest_json

_log = logging.getLogger(__name__)

STORE = Path(".work/slices")
_FORMAT = 1
"""Counts up when the same rows would give other arrays than before."""
_BATCH_ROWS = 256


def write_slices(params: Params, *, raw: Path, base_model: Path, slices: Path) -> None:
    """Fill `slices` with the images of every range and of the held-out rows, as hard links into the store."""
    num_rows, parts = pq.read_metadata(raw / ROWS).num_rows, [*params.ranges, params.heldout]
    if params.num_rows_needed > num_rows:
        raise ConfigurationError(
            f"params.yaml: ranges and heldout: row {params.num_rows_needed} is beyond the {num_rows} rows of "
            f"{params.dataset.source}; allowed: 0-{num_rows}"
        )
    stored = {str(part): store_slice(part, raw, workload=params.workload) for part in parts}
    SlicesManifest(
        vocab_size=None,
        eos_token_id=None,
        workload=params.workload,
        class_names=RawManifest.read(raw).class_names,
        slices=link_slices(stored, slices),
        heldout=str(params.heldout),
    ).write(slices)


def store_slice(part: RowRange, raw: Path, *, workload: str) -> Path:
    """Return the folder of the slice's images.npy, labels.npy, row_ids.npy and manifest, made only if not stored yet.

    Raises DataError if no row of it is left to train on.
    """
    about = RawManifest.read(raw)
    class_names, size = about.class_names, about.image_size
    assert size is not None, "the schema asks for the size of images"
    rows = raw / ROWS
    depends_on = {
        "format": _FORMAT, "range": str(part), "rows": _digest_rows(rows, part), "class_names": class_names,
        "size": size, "workload": workload,
    }  # fmt: skip
    folder = STORE / digest_json(depends_on)[:32]
    if is_kept(folder):
        _log.info("slice %s: reused, its images are unchanged", part)
        return folder
    with fill_folder(folder) as new:
        manifest = _write(part, rows, new, class_names=class_names, size=size)
    _log.info("slice %s: %d images of %d classes", part, manifest.num_rows, len(class_names))
    if manifest.quarantined:
        _log.warning("slice %s: left out %s", part, describe_faults(manifest.quarantined))
    return folder


def _write(part: RowRange, rows: Path, folder: Path, *, class_names: list[str], size: int) -> SliceManifest:
    place = {name: index for index, name in enumerate(class_names)}
    row_ids, labels = list[int](), list[int]()
    faults: Counter[str] = Counter()
    # The array is as long as the range, until it is known how many rows are left out.
    images = np.lib.format.open_memmap(
        folder / "images.npy", mode="w+", dtype=np.uint8, shape=(part.end - part.start, 3, size, size)
    )
    with (folder / "images.npy").open("r+b") as file:
        # On a full disk this says so; a mapped page without room would kill the process.
        os.posix_fallocate(file.fileno(), 0, file.seek(0, os.SEEK_END))
    for row_id, label, pixels, fault in _read_rows(rows, part):
        if fault is not None:
            faults[fault] += 1
            continue
        image = np.frombuffer(pixels, dtype=np.uint8).reshape(size, size, 3)
        images[len(row_ids)] = image.transpose(2, 0, 1)
        row_ids.append(row_id)
        labels.append(place[label])
    images.flush()
    if not row_ids:
        raise DataError(f"slice {part}: every row of it is left out as no good image; choose other rows")
    if len(row_ids) < len(images):
        _shorten(folder / "images.npy", images, num_rows=len(row_ids))
    np.save(folder / "labels.npy", np.array(labels, dtype=np.int64))
    np.save(folder / "row_ids.npy", np.array(row_ids, dtype=np.int64))
    files = {name: digest_file(folder / name) for name in ("images.npy", "labels.npy", "row_ids.npy")}
    manifest = SliceManifest(
        range=str(part),
        num_rows=len(row_ids),
        num_tokens=len(row_ids),
        quarantined={fault: faults[fault] for fault in QUARANTINED_IMAGES if faults[fault]},
        class_names=class_names,
        digest=digest_json(files),
        files=files,
    )
    manifest.write(folder)
    return manifest


def _shorten(file: Path, images: np.memmap, *, num_rows: int) -> None:
    """Leave the first rows of an array in its file; numpy pads the header so that another length fits in its place."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (num_rows, *images.shape[1:])}
    with file.open("r+b") as opened:
        np.lib.format.write_array_header_1_0(opened, header)
        opened.truncate(opened.tell() + num_rows * images[0].nbytes)


def _read_rows(rows: Path, part: RowRange) -> Iterator[tuple[int, str, bytes, str | None]]:
    """Yield row id, class, pixels and fault, reading only the row groups that the slice touches."""
    with pq.ParquetFile(rows) as file:
        for _, table in read_groups(file, part.start, part.end, columns=("row_id", "label", "pixels", "fault")):
            for batch in table.to_batches(_BATCH_ROWS):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _digest_rows(rows: Path, part: RowRange) -> str:
    digest = hashlib.sha256()
    for _, label, pixels, fault in _read_rows(rows, part):
        digest.update(label.encode() + b"\0" + (fault or "").encode() + b"\0" + pixels)
    return digest.hexdigest()
