"""Finished work, kept in a folder named by the digest of what went into it: whole, or not there."""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from tasks.records.stage_file import StageFile
from training.process.files import digest_file, make_folder, rename_folder, sync_to_disk, write_json

_log = logging.getLogger(__name__)

Found = TypeVar("Found", bound=StageFile)
MANIFEST = "manifest.json"
"""Says under `files` which files belong to the folder, with their sha256."""


@contextlib.contextmanager
def fill_folder(folder: Path, *, keeps_failed: bool = False) -> Iterator[Path]:
    """Yield an empty folder to work in, which takes the name `folder` once the block ends without an error.

    What had the name until then stays until then. After an error what was begun goes, unless it `keeps_failed`: until
    the next try, for whoever wants to read what went wrong.
    """
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)
    try:
        yield partial
    except BaseException:
        if not keeps_failed:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    for file in partial.rglob("*"):
        sync_to_disk(file)
    shutil.rmtree(folder, ignore_errors=True)
    rename_folder(partial, folder)


def is_kept(folder: Path) -> bool:
    """Return whether the folder is there, and every file in it with the content that its manifest names."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        is_whole = all(digest_file(folder / name) == digest for name, digest in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole and folder.is_dir():
        _log.warning("%s is damaged; what it held is made anew", folder)
    return is_whole


def keep(result: StageFile, folder: Path) -> None:
    """Write what was found as all that the folder is kept for."""
    result.write(folder)
    write_json(
        folder / MANIFEST, {"files": {name: digest_file(folder / name) for name in (result.NAME, *result.BESIDE)}}
    )


def read_kept(folder: Path, kind: type[Found]) -> Found | None:
    """Return what was found and kept there, None if it is not there or not whole."""
    return kind.read(folder) if is_kept(folder) else None


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
