"""A folder of its own for every launch, so that none goes on from what an earlier one has left there."""

import contextlib
import math
import os
import shutil
from pathlib import Path

_MOST_FILES, _MOST_BYTES = 20_000, 1 << 30
_LARGE = 16 << 20
"""Files of so many bytes are linked where all together are too large to be copied: data sets, as a rule."""
_LINKED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "site-packages"})
_LEVELS_ABOVE, _MOST_BESIDE = 3, 500


def make_fresh_folder(folder: Path, place: Path, *, leave_out: Path) -> Path | None:
    """Return a copy of `folder` below `place`, without `leave_out`; None where it is too large to be copied.

    What stands beside it and above, up to three levels, is linked, so that paths such as ../data lead there too.
    """
    sizes: dict[Path, int] = {}
    empty, linked = [], []
    for here, names, files in os.walk(folder):
        whole = [Path(here, name) for name in names]
        linked += [
            path for path in whole if path.is_symlink() or path.name in _LINKED or os.path.exists(path / "pyvenv.cfg")
        ]
        names[:] = [path.name for path in whole if path not in linked and path.resolve() != leave_out.resolve()]
        sizes |= {
            path: path.lstat().st_size for name in files if (path := Path(here, name)).is_symlink() or path.is_file()
        }
        empty += [Path(here)] * (not names and not files)
        if len(sizes) + len(linked) > _MOST_FILES:
            return None
    most = _LARGE if sum(sizes.values()) > _MOST_BYTES else math.inf
    if sum(size for size in sizes.values() if size < most) > _MOST_BYTES:
        return None
    copy = _link_surroundings(folder, place)
    for path in empty:
        (copy / path.relative_to(folder)).mkdir(parents=True, exist_ok=True)
    for path in (*linked, *sizes):
        target = copy / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        is_inside = path.is_symlink() and path.resolve().is_relative_to(folder.resolve())
        if is_inside and not (link := path.readlink()).is_absolute():
            target.symlink_to(link)
        elif path.is_symlink() or path.is_dir():
            target.symlink_to(path.resolve())
        elif sizes[path] < most:
            with contextlib.suppress(PermissionError):
                shutil.copy2(path, target)
        else:
            target.symlink_to(path)
    return copy


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
