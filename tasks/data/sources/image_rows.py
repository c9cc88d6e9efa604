"""Rows of images: decoded and resized once, when they arrive, and kept in .work/download/images/ from then on."""

import contextlib
import importlib.metadata
import io
import logging
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageOps

from tasks.data.sources.row_policy import MAX_QUARANTINED_SHARE, QUARANTINED_IMAGES, list_class_names, read_columns
from tasks.data.sources.row_store import RepeatedRows, StoredRows, keep_rows
from tasks.params.local_files import SUFFIXES, ImageFile, digest_source, list_image_files
from tasks.params.sources import DatasetParams
from tasks.process.failure import ConfigurationError, DataError
from tasks.process.progress import show_progress
from tasks.records.manifests import ROWS
from tasks.store.kept import fill_folder

_log = logging.getLogger(__name__)

MAX_PIXELS = 2**26
"""Of an image: with more it is not decoded. Photographs have a third of that."""
MAX_BYTES = 2**26
"""Of an image's file: with more it is not read."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_DEEP = ";16B"
"""What Pillow calls 16 bits a channel, which the mode of a coloured image does not say; BMP's `;16` are 16 a pixel."""
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, struct.error, ArithmeticError, LookupError, TypeError)
"""Whatever a decoder makes of bytes that are not what they claim to be."""
_BRIGHTEST = 16
_NAMED_SUFFIXES = 5

STORE = Path(".work/download/images")
_DIGITS = Path(".work/download/digits")
_FORMAT = 3
"""Counts up when images are listed, judged or resized otherwise than before, or the file's layout changes."""
_BATCH_BYTES = 64 * 2**20
_SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.int64(), nullable=False),
        pa.field("label", pa.string(), nullable=False),
        pa.field("pixels", pa.binary(), nullable=False),
        pa.field("fault", pa.string()),
    ]
)
"""`pixels`: (size, size, 3) uint8. A quarantined row keeps its place, with no pixels and its fault."""


def store_images(dataset: DatasetParams) -> StoredRows:
    """Return the data set's images, decoded only if they are not stored yet.

    Raises DataError if the source is no folder or tar of images by class, or too many of them are no good images.
    """
    source = Path(dataset.location)
    if is_builtin := dataset.kind == "builtin":
        source = _DIGITS / importlib.metadata.version("scikit-learn")
        if not source.is_dir():
            with fill_folder(source) as new:
                write_digits(new)

    def identify() -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "size": dataset.image_size,
            "pillow": importlib.metadata.version("pillow"),
            **({"digits": source.name} if is_builtin else {"digest": digest_source(source)}),
        }

    return keep_rows(STORE, dataset, identify=identify, read=partial(_read, source, dataset))


def collect_image_facts(stored: StoredRows, num_rows: int, *, repeated: RepeatedRows, source: str) -> dict[str, Any]:
    """Return facts on the first `num_rows` images, as place_rows does on texts, and `class_names`.

    Raises ConfigurationError if there are fewer.
    """
    if stored.about.num_rows < num_rows:
        raise ConfigurationError(
            f"params.yaml: ranges and heldout: they need {num_rows} rows, and {source} has {stored.about.num_rows}; "
            f"allowed: 0-{stored.about.num_rows}"
        )
    faults: Counter[str] = Counter()
    for first, group in read_columns(stored.file, 0, num_rows, ["pixels", "fault"]):
        for row_id, (pixels, fault) in enumerate(zip(group["pixels"], group["fault"], strict=True), first):
            if fault is None:
                repeated.add(row_id, pixels)
            else:
                faults[fault] += 1
    return {
        "num_rows": num_rows,
        "digest": stored.about.files[ROWS],
        "quarantined": {fault: faults[fault] for fault in QUARANTINED_IMAGES if faults[fault]},
        "num_cut_rows": 0,
        "class_names": stored.about.class_names,
    }


def _read(source: Path, dataset: DatasetParams, target: Path) -> dict[str, Any]:
    """Write every image of the source to `target`; return `num_rows` and `class_names`."""
    place = dataset.place
    left_out: Counter[str] = Counter()
    try:
        files = list_image_files(source, left_out=left_out)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None
    if left_out:
        suffixes = ", ".join(f"{count} of {suffix!r}" for suffix, count in left_out.most_common(_NAMED_SUFFIXES))
        _log.warning(
            "%s: no images by their names, left out: %d files, %s; allowed: %s",
            place, left_out.total(), suffixes, ", ".join(SUFFIXES),
        )  # fmt: skip
    size = dataset.image_size
    assert size is not None, "the schema asks for the size of images"
    results: Counter[str] = Counter()
    first_names: dict[str, str] = {}
    with (
        pq.ParquetWriter(target, _SCHEMA, compression="zstd") as writer,
        show_progress(f"{dataset.source}: images", len(files)) as advance,
        # Decoders let go of Python's lock.
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        first = 0
        for batch in _make_batches(files, size=size):
            contents = []
            for file in batch:
                with (source if source.is_file() else source / file.name).open("rb") as content:
                    content.seek(file.offset or 0)
                    # Of too large a one, one byte more than is allowed.
                    contents.append(content.read(min(file.size, MAX_BYTES + 1)))
            images = list(pool.map(partial(decode_image, size=size), contents))
            rows = []
            for number, (file, image) in enumerate(zip(batch, images, strict=True), start=first):
                fault = image if isinstance(image, str) else None
                pixels = b"" if isinstance(image, str) else image.tobytes()
                rows.append({"row_id": number, "label": file.label, "pixels": pixels, "fault": fault})
                if fault is not None:
                    results[fault] += 1
                    first_names.setdefault(fault, file.name)
            writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
            first += len(batch)
            advance(len(batch))
    if results.total() > MAX_QUARANTINED_SHARE * first:
        faults = "; ".join(
            f"{count} of {first} images: {QUARANTINED_IMAGES[fault]}, the first is {first_names[fault]}"
            for fault, count in results.items()
        )
        raise DataError(
            f"{place}: {faults}; allowed: at most {MAX_QUARANTINED_SHARE:.0%} of such images, which are left out; "
            "drop or mend them in the source"
        )
    return {"num_rows": first, "class_names": list_class_names({file.label for file in files})}


def _make_batches(files: Iterable[ImageFile], *, size: int) -> Iterator[list[ImageFile]]:
    """Yield the files in batches whose contents and pixels fit into memory, whatever the size of one."""
    batch: list[ImageFile] = []
    num_bytes = 0
    for file in files:
        wanted = size * size * 3 + min(file.size, MAX_BYTES)
        if batch and num_bytes + wanted > _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(file)
        num_bytes += wanted
    yield batch


def write_digits(folder: Path) -> None:
    """Fill `folder` with 0/0000.png to 9/1796.png, the number in the name being the place in scikit-learn's set.

    8 x 8 pixels in 17 greys: E. Alpaydin, C. Kaynak 1998, Optical Recognition of Handwritten Digits, UCI repository (CC
    BY 4.0).
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * (255 / _BRIGHTEST)).round().astype(np.uint8)
    for index, (image, label) in enumerate(zip(pixels, digits.target.tolist(), strict=True)):
        file = folder / str(label) / f"{index:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)


def decode_image(data: bytes, *, size: int) -> np.ndarray | str:
    """Return the image as (size, size, 3) uint8, its middle square resized; or its fault, of QUARANTINED_IMAGES.

    It stands upright, as its EXIF says. How many pixels it has is asked before any is decoded.
    """
    if len(data) > MAX_BYTES:
        return "too_large"
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return "too_large"
            if any(_DEEP in str(tile) for tile in image.tile):
                return "depth"
            image.load()
            # What a camera wrote on the image's side may be damaged where its pixels are not.
            with contextlib.suppress(*_DAMAGE):
                ImageOps.exif_transpose(image, in_place=True)
            return np.asarray(_crop_square(image, size))
    except (Image.DecompressionBombError, MemoryError):
        return "too_large"
    except _DAMAGE:
        return "unreadable"


def _crop_square(image: Any, size: int) -> Any:
    """Return the middle square in RGB, transparency on white, resized with anti-aliasing."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    # Cut first: resizing a part of an image lets in what lies around it.
    middle = image.convert("RGB").crop((left, top, left + side, top + side))
    return middle.resize((size, size), resample=Image.Resampling.BILINEAR)
