"""Finished work, kept in a folder named by the digest of what went into it: whole, or not there."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.process.files import digest_of_file

MANIFEST = "manifest.json"
"""Says under `files` which files belong to the folder, with their sha256."""


@contextlib.contextmanager
def keeping(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to work in, which takes the name `folder` once the block ends without an error."""
    partial = folder.with_suffix(".partial")
    for leftover in (folder, partial):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(folder)


def kept_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the folder's manifest if every file is there with the content it names, else None."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        is_whole = all(digest_of_file(folder / name) == digest for name, digest in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not is_whole:
        return None
    mark_used(folder)
    return manifest


def mark_used(entry: Path) -> None:
    """Note that what is kept there was used now, for tasks/store/prune.py."""
    with contextlib.suppress(OSError):
        os.utime(entry)
