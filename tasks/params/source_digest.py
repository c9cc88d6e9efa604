"""What a local source holds, as one digest."""

import os
from collections.abc import Iterator
from pathlib import Path

from training.process.files import digest_of_file, digest_of_json


def files_in(folder: Path) -> Iterator[Path]:
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


def digest_of_source(path: Path) -> str | None:
    """Return the sha256 of a local file or of a folder's files by name; None if there is nothing."""
    if path.is_file():
        return digest_of_file(path)
    if path.is_dir():
        files = sorted(files_in(path))
        return digest_of_json({file.relative_to(path).as_posix(): digest_of_file(file) for file in files})
    return None
