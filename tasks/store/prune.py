"""What .work/ keeps of comparisons that are long gone: `make prune` lists it, `make prune GO=1` removes it.

Finished work is kept so that nothing is computed twice. A comparison that was changed counts as a new one; whatever
none of the last ones has used is listed, by when it was used last, and never what data/ holds now.
"""

import argparse
import contextlib
import json
import logging
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.params import Params
from tasks.process.failure import ConfigurationError, DataError, ResourceError, exit_with_one_line
from tasks.process.lock import lock_machine, lock_workspace
from tasks.records.run import RunFile
from tasks.store.kept import mark_used
from training.process.files import digest_json, write_json

_log = logging.getLogger(__name__)

KEPT_COMPARISONS = 10
"""How many comparisons may pass until what they did not use goes."""
_NOTED_COMPARISONS = 100
_WORK, _DATA = Path(".work"), Path("data")
_NOTES = _WORK / "comparisons.json"
_DOWNLOADS = ("download/*/*", "slices/*")
_RESULTS = ("measure/*", "evaluation/*", "runs/*/segments/*", "runs/*/partial/*", "search/trials/*")
_DVC_AT_WORK = Path(".dvc/tmp/rwlock")


def note_comparison(params: Params) -> None:
    """Note that this comparison begins; remove downloads and slices that none of the last ten has used.

    A comparison that is the same as the one before is not another one.
    """
    for entry in _list_in_data():
        mark_used(entry)
    notes = _read_notes()
    digest = digest_json(params.model_dump(mode="json"))
    if not notes or notes[-1]["digest"] != digest:
        notes.append({"digest": digest, "begun_at": time.time()})
        write_json(_NOTES, notes[-_NOTED_COMPARISONS:])
    for entry in list_unused(_DOWNLOADS, keep=KEPT_COMPARISONS):
        _log.info("%s: removed, none of the last %d comparisons has used it", entry, KEPT_COMPARISONS)
        _remove(entry)


def list_unused(patterns: tuple[str, ...], *, keep: int) -> list[Path]:
    """Return what matches below .work/ and none of the last `keep` comparisons has used, the longest unused first."""
    notes = _read_notes()
    if len(notes) < keep:
        return []
    needed = _list_in_data()
    found = {entry: entry.stat().st_mtime for entry in _list_entries(patterns) if entry not in needed}
    return sorted((entry for entry in found if found[entry] < notes[-keep]["begun_at"]), key=found.__getitem__)


def _list_entries(patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in _WORK.glob(pattern))


def _list_in_data() -> set[Path]:
    """Return what data/ holds now, as links or by the fingerprints of its runs."""
    inodes = {_get_inode(file) for file in _DATA.rglob("*") if file.is_file()}
    segments = set()
    for run in _DATA.glob(f"runs/**/{RunFile.NAME}"):
        with contextlib.suppress(DataError):
            segments |= {part.fingerprint for part in RunFile.read(run).segments}
    entries = _list_entries((*_DOWNLOADS, *_RESULTS))
    return {
        entry
        for entry in entries
        if entry.name in segments or any(_get_inode(file) in inodes for file in _list_files(entry))
    }


def _list_files(entry: Path) -> Iterator[Path]:
    return (path for path in (entry.rglob("*") if entry.is_dir() else [entry]) if path.is_file())


def _get_inode(file: Path) -> int:
    return file.stat().st_ino


def _read_notes() -> list[dict[str, Any]]:
    try:
        notes: list[dict[str, Any]] = json.loads(_NOTES.read_bytes())
    except (OSError, ValueError):
        return []
    return notes


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _require_idle() -> None:
    """Raise ResourceError while a `dvc repro` that somebody typed runs a stage here."""
    try:
        at_work = re.findall(r'"pid": (\d+)', _DVC_AT_WORK.read_text(encoding="utf-8"))
    except OSError:
        return
    for pid in at_work:
        if Path(f"/proc/{pid}").exists():  # of one that was killed, DVC's note stays
            raise ResourceError(f"DVC, pid {pid}, runs a stage in this folder; wait for it, then run again")


def prune(*, keep: int, is_wanted: bool) -> str:
    """Remove what no comparison of the last `keep` has used if that `is_wanted`; return what goes, or would."""
    entries = list_unused((*_DOWNLOADS, *_RESULTS), keep=keep)
    said = []
    total = 0
    for entry in entries:
        # What DVC's cache holds as well takes no room of its own.
        num_bytes = sum(file.stat().st_size for file in _list_files(entry) if file.stat().st_nlink == 1)
        total += num_bytes
        day = time.strftime("%Y-%m-%d", time.gmtime(entry.stat().st_mtime))
        said.append(f"{num_bytes / 1e6:10,.1f} MB  last used {day}  {entry}")
        if is_wanted:
            _remove(entry)
    what = f"{len(entries)} of what .work/ keeps, {total / 1e6:,.1f} MB, used by none of the last {keep} comparisons"
    remedy = "removed" if is_wanted else "`make prune GO=1` removes it, `make prune KEEP=3` keeps less"
    return "\n".join([*said, f"{what}; {remedy}" if entries else f"nothing to remove: {what}"])


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.store.prune", description=__doc__)
    parser.add_argument("--keep", default=str(KEPT_COMPARISONS), metavar="N", help="comparisons whose work is kept")
    parser.add_argument("--go", default="", help="remove it: anything but 0")
    arguments = parser.parse_args()
    if not arguments.keep.isdecimal() or not 1 <= int(arguments.keep) <= _NOTED_COMPARISONS:
        raise ConfigurationError(f"KEEP: got {arguments.keep[:80]!r}; allowed: 1 to {_NOTED_COMPARISONS}")
    is_wanted = arguments.go not in ("", "0")
    with contextlib.ExitStack() as locks:
        if is_wanted:
            locks.enter_context(lock_workspace("make prune"))
            locks.enter_context(lock_machine("make prune"))
            _require_idle()
        print(prune(keep=int(arguments.keep), is_wanted=is_wanted))  # noqa: T201 the command's own output


if __name__ == "__main__":
    exit_with_one_line(_main, name="prune")
