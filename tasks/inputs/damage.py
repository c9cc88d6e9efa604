"""Files that are not what their manifest says: found before anything is computed from them, and taken out of use.

A file of an output, its store in .work/ and DVC's cache are often one file with several names. Damage in place is then
damage in all of them, and DVC would bring it back: it does not read again what it holds to be protected.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.process.failure import DataError
from tasks.store.kept import MANIFEST
from training.process.files import digest_file, digest_json

_LOCK = Path("dvc.lock")


def require_whole(folder: Path, *, digest: str | None = None) -> None:
    """Read every file of a slice or a model and hold it against the folder's manifest.json, and that against `digest`.

    Raises DataError (exit code 3) that names the file; it is removed then, and its copy in DVC's cache with it, so that
    the next run makes it anew.
    """
    manifest_file = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(manifest_file.read_bytes())
        files: Mapping[str, str] = manifest["files"]
        is_sound = manifest["digest"] == digest_json(files) and digest in (None, manifest["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        is_sound = False
    if not is_sound:
        raise remove_damaged(manifest_file, "is missing or not what was written")
    for name, wanted in files.items():
        require_digest(folder / name, wanted)


def require_digest(file: Path, wanted: str | None) -> str:
    """Return the file's sha256, which is the wanted one; raises DataError as above."""
    result = digest_file(file) if file.is_file() else "nothing"
    if result != wanted:
        raise remove_damaged(file, f"is damaged: its sha256 is {result[:12]}, {str(wanted)[:12]} was written")
    return result


def remove_damaged(file: Path, what: str) -> DataError:
    """Return the error for a damaged file of a stage's output, after it was taken out of use."""
    copy = _find_cached_copy(file)
    for place in (file, copy):
        if place is not None:
            place.unlink(missing_ok=True)
    removed = "it was removed" if copy is None else "it was removed, and the same in DVC's cache"
    return DataError(f"{file}: {what}; {removed}: run again (make compare), which makes it anew")


def _find_cached_copy(file: Path) -> Path | None:
    """Return the file of DVC's cache that stands for this one, if it is damaged too.

    It is looked up in dvc.lock, since what the damaged file holds no longer says what it was.
    """
    if not _LOCK.is_file():
        return None
    # Here: a second, which only a failure need cost.
    from dvc.fs import LocalFileSystem
    from dvc.repo import Repo
    from dvc_data.hashfile.hash import file_md5
    from ruamel.yaml import YAML

    with Repo(uninitialized=True) as repo:
        cache = repo.cache.local
        if cache is None:
            return None
        for stage in YAML(typ="safe").load(_LOCK)["stages"].values():
            for out in stage.get("outs", []):
                output, md5 = Path(out["path"]).absolute(), out.get("md5")
                if not md5 or not file.absolute().is_relative_to(output):
                    continue
                if (name := file.absolute().relative_to(output).as_posix()) != ".":
                    listing = Path(cache.oid_to_path(md5))
                    entries = json.loads(listing.read_bytes()) if listing.is_file() else []
                    md5 = next((part["md5"] for part in entries if part["relpath"] == name), None)
                if md5:
                    copy = Path(cache.oid_to_path(md5))
                    return copy if copy.is_file() and file_md5(str(copy), LocalFileSystem()) != md5 else None
    return None
