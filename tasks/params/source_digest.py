"""What a local source holds, as one digest."""

import os
from collections.abc import Iterator
from pathlib import Path

from training.process.files import digest_file, digest_json


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and those in it; links are followed, and no folder is entered twice."""
    entered = set()
    for place, folders, names in os.walk(folder, followlinks=True):
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
