"""A folder of its own for every launch, so that none goes on from what an earlier one has left there."""

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_FILES, _MOST_BYTES = 20_000, 1 << 30
_LARGE = 16 << 20
"""Files of so many bytes are linked where all together are too large to be copied: data sets, as a rule."""
_LINKED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "site-packages"})
_LEVELS_ABOVE, _MOST_BESIDE = 3, 500
_CLONE = 0x40049409
"""FICLONE of Linux: a copy that shares its blocks until one of the two is written to."""


def make_fresh_folder(folder: Path, place: Path, *, leave_out: Path) -> Path | None:
    """Return a copy of `folder` below `place`, without `leave_out`; None where it is too large to be copied.

    What stands beside it and above, up to three levels, is linked, so that paths such as ../data lead there too.
    """
    files = []
    for file in _list_files(folder, leave_out):
        files.append(file)
        if len(files) > _MOST_FILES:
            return None
    sizes = {file: file.lstat().st_size for file in files}
    is_large = sum(sizes.values()) > _MOST_BYTES
    if is_large and sum(size for size in sizes.values() if size < _LARGE) > _MOST_BYTES:
        return None
    copy = _link_surroundings(folder, place)
    for file in files:
        target = copy / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.is_symlink():
            target.symlink_to(
                os.readlink(file)
                if (not os.path.isabs(os.readlink(file)) and file.resolve().is_relative_to(folder.resolve()))
                else file.resolve()
            )
        elif file.is_dir():
            if any(file.iterdir()):
                target.symlink_to(file)
            else:
                target.mkdir(exist_ok=True)
        elif not is_large or sizes[file] < _LARGE:
            _copy(file, target)
        elif not _clone(file, target):
            target.symlink_to(file)
    return copy


def _list_files(folder: Path, leave_out: Path) -> Iterator[Path]:
    """Yield regular files, links, empty folders, and those folders that are linked as they are."""
    with os.scandir(folder) as entries:
        results = [Path(entry.path) for entry in entries]
    if not results:
        yield folder
    for path in results:
        if path.is_symlink() or stat.S_ISREG(path.lstat().st_mode):
            yield path
        elif path.is_dir() and path.resolve() != leave_out.resolve():
            with contextlib.suppress(PermissionError):
                if path.name in _LINKED or (path / "pyvenv.cfg").exists():
                    yield path
                else:
                    yield from _list_files(path, leave_out)


def _link_surroundings(folder: Path, place: Path) -> Path:
    """Return the path of the copy, where what stands around the folder is linked and it itself is empty."""
    above = folder.parents[min(_LEVELS_ABOVE, len(folder.parents)) - 1]
    for part in folder.relative_to(above).parts:
        place.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            beside = [file for file in above.iterdir() if file.name != part]
            for item in beside if len(beside) <= _MOST_BESIDE else ():
                (place / item.name).symlink_to(item)
        above, place = above / part, place / part
    place.mkdir(parents=True, exist_ok=True)
    return place


def _copy(file: Path, target: Path) -> None:
    with contextlib.suppress(PermissionError):
        if not _clone(file, target):
            shutil.copy2(file, target)


def _clone(file: Path, target: Path) -> bool:
    try:
        with file.open("rb") as source, target.open("wb") as made:
            fcntl.ioctl(made, _CLONE, source.fileno())
    except OSError:
        target.unlink(missing_ok=True)
        return False
    shutil.copystat(file, target)
    return True
