"""Whether a disk takes what is going to be written to it: asked before anything is computed."""

import shutil
import tempfile
from pathlib import Path

from tasks.process.failure import ResourceError

_SPARE = 0.2
"""Room that is asked for beyond the files, as a share of one: logs, steps and ledgers."""


def require_writable(*folders: Path) -> None:
    """Make the folders; raises ResourceError in one line that names the first in which no file can be made."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ResourceError(
                f"{folder}: {error.strerror}; nothing was started: make the folder writable, or move the project"
            ) from None


def require_room(folder: Path, num_bytes: int, *, num: float, what: str) -> None:
    """Raise ResourceError, with the numbers, unless `num` files of that size, and a little more, have room."""
    needed = int((num + _SPARE) * num_bytes)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"{folder}: {free:,} bytes are free, {needed:,} are needed: {num + _SPARE:.1f} times {num_bytes:,} of a "
            f"{what}; nothing was started: make room, or move the project to another disk"
        )
