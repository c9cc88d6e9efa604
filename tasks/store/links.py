"""Finished work appears in an output as hard links: never written twice, never copied without need."""

import os
import shutil
from pathlib import Path


def link_file(source: Path, target: Path) -> None:
    """Give `source` the second name `target`, replacing what is there; copies where the file system cannot link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def link_folder(source: Path, target: Path) -> None:
    """Link every file below `source` to the same place below `target`."""
    for file in sorted(source.rglob("*")):
        if file.is_file():
            link_file(file, target / file.relative_to(source))
