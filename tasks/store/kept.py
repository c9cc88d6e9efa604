"""Finished work, kept in a folder named by the digest of what went into it: whole, or not there."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from tasks.records.stage_file import StageFile
from training.process.files import digest_file, write_json

Found = TypeVar("Found", bound=StageFile)
MANIFEST = "manifest.json"
"""Says under `files` which files belong to the folder, with their sha256."""


@contextlib.contextmanager
def fill_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to work in, which takes the name `folder` once the block ends without an error."""
    partial = folder.with_suffix(".partial")
    for leftover in (folder, partial):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(folder)


def find_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the folder's manifest if every file is there with the content it names, else None."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        is_whole = all(digest_file(folder / name) == digest for name, digest in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not is_whole:
        return None
    mark_used(folder)
    return manifest


def keep(found: StageFile, folder: Path) -> None:
    """Write what was found as all that the folder is kept for."""
    found.write(folder)
    write_json(folder / MANIFEST, {"files": {name: digest_file(folder / name) for name in (found.NAME, *found.BESIDE)}})


def read_kept(folder: Path, kind: type[Found]) -> Found | None:
    """Return what was found and kept there, None if it is not there or not whole."""
    return kind.read(folder) if find_manifest(folder) is not None else None


def mark_used(entry: Path) -> None:
    """Note that what is kept there was used now, for tasks/store/prune.py."""
    with contextlib.suppress(OSError):
        os.utime(entry)
