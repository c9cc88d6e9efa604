"""Slices of images: one array of pixels that is memory-mapped, so that no epoch decodes anything."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.sources.row_policy import QUARANTINED_IMAGES, read_columns
from tasks.params import Params
from tasks.params.sources import RowRange
from tasks.process.failure import DataError
from tasks.records.manifests import ROWS, RawManifest

_FORMAT = 1
"""Counts up when the same rows would give other arrays than before."""


def open_rows(params: Params, *, raw: Path, base_model: Path) -> "Images":
    """Return the images of the data set, decoded when they were downloaded; the base model has no part in them."""
    about = RawManifest.read(raw)
    assert about.image_size is not None, "the schema asks for the size of images"
    return Images(rows=raw / ROWS, class_names=about.class_names, size=about.image_size, workload=params.workload)


@dataclass(frozen=True, kw_only=True)
class Images:
    """The images of a data set, whose slices become arrays of pixels."""

    rows: Path
    """The parquet file."""
    class_names: list[str]
    """The classes, in the order of their numbers."""
    size: int
    """Pixels of a side."""
    workload: str
    """The ML problem."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the arrays depend on, beside the rows."""
        return {"format": _FORMAT, "class_names": self.class_names, "size": self.size, "workload": self.workload}

    @property
    def about(self) -> dict[str, Any]:
        """What the list of all slices says of them."""
        return {"vocab_size": None, "eos_token_id": None}

    def digest_rows(self, part: RowRange) -> str:
        """Return the sha256 of the slice's classes, faults and pixels."""
        digest = hashlib.sha256()
        for _, label, pixels, fault in _read_rows(self.rows, part):
            digest.update(label.encode() + b"\0" + (fault or "").encode() + b"\0" + pixels)
        return digest.hexdigest()

    def write(self, part: RowRange, folder: Path) -> dict[str, Any]:
        """Write images.npy, labels.npy and row_ids.npy; return what the manifest says of them."""
        place = {name: index for index, name in enumerate(self.class_names)}
        row_ids, labels = list[int](), list[int]()
        groups = read_columns(self.rows, part.start, part.end, ["fault"])
        faults = Counter(fault for _, group in groups for fault in group["fault"])
        if not (num_rows := faults.pop(None, 0)):
            raise DataError(f"slice {part}: every row of it is left out as no good image; choose other rows")
        images = np.lib.format.open_memmap(
            folder / "images.npy", mode="w+", dtype=np.uint8, shape=(num_rows, 3, self.size, self.size)
        )
        with (folder / "images.npy").open("r+b") as opened:
            # On a full disk this says so; a mapped page without room would kill the process.
            os.posix_fallocate(opened.fileno(), 0, opened.seek(0, os.SEEK_END))
        for row_id, label, pixels, fault in _read_rows(self.rows, part):
            if fault is None:
                image = np.frombuffer(pixels, dtype=np.uint8).reshape(self.size, self.size, 3)
                images[len(row_ids)] = image.transpose(2, 0, 1)
                row_ids.append(row_id)
                labels.append(place[label])
        images.flush()
        np.save(folder / "labels.npy", np.array(labels, dtype=np.int64))
        np.save(folder / "row_ids.npy", np.array(row_ids, dtype=np.int64))
        return {
            "num_rows": num_rows,
            "num_tokens": num_rows,
            "quarantined": {fault: faults[fault] for fault in QUARANTINED_IMAGES if faults[fault]},
            "class_names": self.class_names,
        }


def _read_rows(rows: Path, part: RowRange) -> Iterator[tuple[int, str, bytes, str | None]]:
    """Yield row id, class, pixels and fault."""
    names = ("row_id", "label", "pixels", "fault")
    for _, group in read_columns(rows, part.start, part.end, names):
        yield from zip(*(group[name] for name in names), strict=True)
