"""Which rows are good images: one place that decides it (docs/data.md)."""

import io
import struct
from typing import Any

import numpy as np
from PIL import Image

MAX_PIXELS = 2**26
"""Of an image: with more it is not decoded. Photographs have a third of that."""
MAX_BYTES = 2**26
"""Of an image's file: with more it is not read."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_DEEP_MODES = ("I", "F")


def decode_image(data: bytes, *, size: int) -> np.ndarray | str:
    """Return the image as (size, size, 3) uint8, its middle square resized; or its fault, of QUARANTINED_IMAGES.

    How many pixels it has is asked before any is decoded.
    """
    if len(data) > MAX_BYTES:
        return "too_large"
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return "too_large"
            if image.mode.split(";")[0] in _DEEP_MODES:
                return "depth"
            return np.asarray(_crop_square(image, size))
    except (Image.DecompressionBombError, MemoryError):
        return "too_large"
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, ArithmeticError, LookupError, TypeError):
        # Whatever a decoder makes of bytes that are not what they claim to be.
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
