"""The built-in images: scikit-learn's 1,797 handwritten digits, 8 x 8 pixels in 17 greys, as a folder of class folders.

Source: E. Alpaydin, C. Kaynak 1998, Optical Recognition of Handwritten Digits, UCI repository (CC BY 4.0).
"""

import importlib.metadata
from pathlib import Path

import numpy as np

NUM_IMAGES = 1_797
_BRIGHTEST = 16


def read_digits_version() -> str:
    """Return the version of the package that the images come with."""
    return importlib.metadata.version("scikit-learn")


def write_digits(folder: Path) -> None:
    """Fill `folder` with 0/0000.png to 9/1796.png, the number in the name being the place in scikit-learn's set."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * (255 / _BRIGHTEST)).round().astype(np.uint8)
    for index, (image, label) in enumerate(zip(pixels, digits.target.tolist(), strict=True)):
        file = folder / str(label) / f"{index:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
