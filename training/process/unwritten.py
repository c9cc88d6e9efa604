"""Files that a rank works on, and whether somebody wrote to them meanwhile; standard library only."""

import hashlib
from pathlib import Path

from training.process.failure import ChangedInputError

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
