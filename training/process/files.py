"""Files that are whole or absent, what they hold, and whether somebody wrote to them; standard library only."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.process.failure import ChangedInputError


def digest_json(value: Any) -> str:
    """Return the sha256 (hex) of `value` as canonical JSON: sorted keys, no spaces, no NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_file(path: Path) -> str:
    """Return the sha256 (hex) of the file's bytes, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success its content is on disk and takes the name `path`.

    On any error `path` stays what it was and the temporary file is gone.
    """
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        sync_to_disk(temporary)
        temporary.replace(path)
        sync_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically and durably; the file is whole or absent."""
    with replace_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def rename_folder(filled: Path, name: Path) -> None:
    """Give a folder whose files are on disk its name, durably; OSError if that is taken by a folder that holds any."""
    sync_to_disk(filled)
    filled.rename(name)
    sync_to_disk(name.parent)


def make_folder(path: Path) -> None:
    """Make the folder and what is missing above it, durably: a new entry is on disk in the folder that it stands in."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Flush a file or a folder's entries to the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_CODE = Path(__file__).parents[1]

Stamps = dict[str, tuple[int, int, int]]
"""Name -> modification time, size and inode."""


def read_stamps(folder: Path) -> Stamps:
    """Return what shows later whether a file of the folder was written to."""
    facts = {file.name: file.stat() for file in sorted(folder.glob("*"))}
    return {name: (fact.st_mtime_ns, fact.st_size, fact.st_ino) for name, fact in facts.items()}


def require_unwritten(folder: Path, before: Stamps) -> None:
    """Raise ChangedInputError that names the first file which is not what it was when the stamps were taken."""
    now = read_stamps(folder)
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise ChangedInputError(f"{folder / name} changed while it was trained on; the segment was not saved")


def digest_code() -> str:
    """Return the sha256 of the bytes of all Python files of training/, by name."""
    digest = hashlib.sha256()
    for file in sorted(_CODE.rglob("*.py")):
        digest.update(f"{file.relative_to(_CODE).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def require_code(digest: str) -> None:
    """Raise ChangedInputError unless the code on disk, which was just imported, has this digest."""
    if digest_code() != digest:
        raise ChangedInputError("training/ changed between the start of the ranks and their imports; run again")
