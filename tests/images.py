"""Folders and tars of small images, slices of them, and a base model for them."""

import io
import struct
import tarfile
import zlib

import numpy as np
from PIL import Image

from tasks.data.sources.image_models import write_image_network
from tests.tiny import with_manifest, write_arrays

CLASS_NAMES = ["left", "right", "top"]


def encoded(pixels, kind="PNG", **options):
    """Return an image file with these pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def write_deep_png(color_type, num_channels):
    """Return a PNG of 16 bits a channel, which Pillow writes of greys alone."""
    size = 8
    rows = (b"\0" + b"\x9c\x40" * size * num_channels) * size
    header = struct.pack(">IIBBBBB", size, size, 16, color_type, 0, 0, 0)
    chunks = [b"IHDR" + header, b"IDAT" + zlib.compress(rows), b"IEND"]
    packed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def write_bmp_of_two_bytes(pixel, *, size):
    """Return a BMP of 16 bits a pixel, of red, green and blue 5, 6 and 5."""
    masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)
    pixels = struct.pack("<H", pixel) * size**2
    header = struct.pack("<IiiHHIIiiII", 40, size, size, 1, 16, 3, len(pixels), 0, 0, 0, 0) + masks
    return b"BM" + struct.pack("<IHHI", 14 + len(header) + len(pixels), 0, 0, 14 + len(header)) + header + pixels


def striped(label, index, *, size=12):
    """Return an image whose bright part says its class, with noise of its own: (size, size, 3) uint8."""
    pixels = np.random.default_rng([CLASS_NAMES.index(label), index]).integers(0, 90, (size, size, 3), dtype=np.uint8)
    half = size // 2
    where = {"left": np.s_[:, :half], "right": np.s_[:, half:], "top": np.s_[:half]}[label]
    pixels[where] += 120
    return pixels


def write_image_folder(folder, *, num_per_class, above):
    """Write PNG files CLASS/NNN.png, below the folder `above` ("": none); return the folder."""
    for label in CLASS_NAMES:
        target = folder / above / label
        target.mkdir(parents=True)
        for index in range(num_per_class):
            (target / f"{index:03d}.png").write_bytes(encoded(striped(label, index)))
    return folder


def write_tar(file, folder):
    """Pack a folder as it is; return the tar."""
    with tarfile.open(file, "w:") as archive:
        archive.add(folder, arcname=".")
    return file


def make_image_slice(folder, *, num_rows, size=12, first_row=0):
    """Write striped images in the layout of data/slices/<start>-<end>; return the folder."""
    folder.mkdir(parents=True)
    labels = np.arange(num_rows, dtype=np.int64) % len(CLASS_NAMES)
    images = [striped(CLASS_NAMES[label], first_row + row, size=size) for row, label in enumerate(labels.tolist())]
    row_ids = np.arange(first_row, first_row + num_rows, dtype=np.int64)
    pixels = np.stack(images).transpose(0, 3, 1, 2).copy()
    return write_arrays(folder, {"images": pixels, "labels": labels, "row_ids": row_ids}, num_tokens=num_rows)


def make_image_model(folder, **network):
    """Write the built-in model for these classes; return its folder."""
    folder.mkdir(parents=True)
    write_image_network(folder, "resnet18", CLASS_NAMES, **network)
    return with_manifest(folder, num_parameters=0, model_type="resnet18")
