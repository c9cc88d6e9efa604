"""A user's file is kept before another takes its place."""

import itertools
import shutil
from pathlib import Path


def save_beside(file: Path) -> Path:
    """Return a copy of the file beside it: FILE.saved, FILE.saved-2 and so on, none of which is ever written over."""
    for number in itertools.count(1):
        saved = file.with_name(f"{file.name}.saved" + (f"-{number}" if number > 1 else ""))
        if not saved.exists():
            return Path(shutil.copyfile(file, saved))
        if saved.is_file() and saved.read_bytes() == file.read_bytes():
            return saved
    raise AssertionError("numbers have no end")
