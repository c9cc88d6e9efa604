"""What has to hold before a file that somebody else may have written is loaded; standard library only."""

import importlib.metadata
import re
import zipfile
from pathlib import Path

_FIRST_SAFE_TORCH = (2, 10)
_MAX_PICKLE_BYTES = 4 * 2**20
"""Of the list of tensors in a checkpoint: about 25,000 of them."""


class UnsafeTorchError(ValueError):
    """The torch that is installed cannot load a file safely."""


def require_safe_torch(version: str | None = None) -> None:
    """Raise UnsafeTorchError if torch of this version, by default the installed one, can be made to run what a
    checkpoint holds; imports nothing."""
    version = version or importlib.metadata.version("torch")
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < _FIRST_SAFE_TORCH:
        raise UnsafeTorchError(
            f"torch: got {version}; allowed: 2.10 or later, before which torch.load(weights_only=True) had holes; "
            "run `make setup`"
        )


def require_plain_archive(file: Path) -> None:
    """Raise ValueError unless the file is a zip archive as torch.save writes it.

    Nothing in it is compressed and no two entries share bytes, so that what is read is never more than the file holds.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OverflowError) as error:
        raise ValueError(f"no zip archive ({error})") from None
    for entry in entries:
        if entry.filename.endswith("/constants.pkl"):
            raise ValueError(f"{entry.filename!r} makes it a program (TorchScript); allowed: tensors")
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename!r} is compressed; allowed: entries as torch stores them")
        if entry.filename.endswith(".pkl") and entry.file_size > _MAX_PICKLE_BYTES:
            raise ValueError(
                f"{entry.filename!r} holds {entry.file_size:,} bytes; allowed: a list of tensors of at most "
                f"{_MAX_PICKLE_BYTES:,}"
            )
    claimed, there = sum(entry.file_size for entry in entries), file.stat().st_size
    if claimed > there:
        raise ValueError(f"its entries claim {claimed:,} bytes and the file has {there:,}; entries may not overlap")
