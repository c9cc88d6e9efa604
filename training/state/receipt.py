"""Folders that are whole or absent, and prove what they are by a receipt; standard library only."""

import contextlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from training.process.files import digest_file, digest_json, make_folder, rename_folder, sync_to_disk

STATE_FILE = "state.pt"
"""In the folder of a checkpoint, beside its weights: all else that the next step depends on."""
DROPPED = {"all": "-", "epochs": STATE_FILE, "last": "*.pt"}
"""`keep` -> the files of a finished segment that are removed once the next one is finished; `-`: none."""
RECEIPT = "receipt.json"
_REASON = "not-used.txt"
"""In a folder that was set aside: why."""

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def seal_folder(destination: Path, *, fingerprint: str, facts: dict[str, Any]) -> Iterator[Path]:
    """Yield a temporary folder beside `destination`; on success it is on disk, sealed, and takes that name.

    The receipt inside holds the fingerprint, the facts, every file's size and sha256, and a digest of itself. At any
    point of a crash there is either no `destination` or a whole one; `remove_unfinished` clears the rest.
    """
    make_folder(destination.parent)
    temporary = _make_temporary_name(destination)
    temporary.mkdir()
    try:
        yield temporary
        files = sorted(temporary.iterdir())
        for file in files:
            sync_to_disk(file)
        receipt = {
            "fingerprint": fingerprint,
            **facts,
            "files": {file.name: {"sha256": digest_file(file), "num_bytes": file.stat().st_size} for file in files},
        }
        (temporary / RECEIPT).write_bytes(_encode_receipt(receipt))
        sync_to_disk(temporary / RECEIPT)
        rename_folder(temporary, destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def find_receipt_problem(folder: Path, *, fingerprint: str, may_lack: str = "-") -> str | None:
    """Return None if the folder is whole and bears the fingerprint, else one line saying what is wrong.

    Reads and hashes every file. `may_lack`: files of this pattern need not be there.
    """
    try:
        content = (folder / RECEIPT).read_bytes()
        receipt = json.loads(content)
        del receipt["digest"]
        if content != _encode_receipt(receipt):
            return f"{RECEIPT} was altered: its own digest does not match"
        if receipt["fingerprint"] != fingerprint:
            return f"fingerprint is {receipt['fingerprint']}, wanted {fingerprint}"
        return _find_file_problem(folder, receipt["files"], may_lack=may_lack)
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{RECEIPT} is unreadable: {type(error).__name__}: {error}"


def drop_files(folder: Path, pattern: str) -> None:
    """Remove the files of this pattern from a finished segment; its receipt goes on naming them."""
    for file in [*folder.glob(pattern)]:
        file.unlink()


def set_aside(folder: Path, problem: str) -> None:
    """Take a broken folder out of use, loudly and for good: nothing loads it under its new name, which stays."""
    aside = folder.with_name(f"{folder.name}.broken-{uuid.uuid4().hex[:8]}")
    folder.rename(aside)
    # The name alone says that it was not used: where not even a line can be written, the reason is lost, no more.
    with contextlib.suppress(OSError):
        (aside / _REASON).write_text(f"{problem}\n", encoding="utf-8")
        sync_to_disk(aside.parent)
    _log.warning("NOT USED: %s: %s; kept as %s", folder, problem, aside.name)


def list_set_aside(parent: Path, name: str = "*") -> list[str]:
    """Return `NAME: why` of every folder that was set aside in `parent`, sorted; `name`: of those of this name only."""
    results = []
    for folder in sorted(parent.glob(f"{name}.broken-*")):
        reason = folder / _REASON
        why = reason.read_text(encoding="utf-8").strip() if reason.is_file() else "the reason could not be written"
        results.append(f"{folder.name.partition('.')[0]}: {why}")
    return results


def discard(folder: Path) -> None:
    """Remove a folder that is no longer needed; a crash in between leaves the whole or what the next start removes.

    What cannot be removed costs room and nothing else, so it is said and no error.
    """
    try:
        doomed = folder.rename(_make_temporary_name(folder))
        shutil.rmtree(doomed)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("%s could not be removed: %s", folder, error)


def remove_unfinished(parent: Path) -> None:
    """Remove the temporary files and folders that a crash has left in `parent`."""
    for leftover in parent.glob("*.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in parent.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def _make_temporary_name(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")


def _encode_receipt(receipt: dict[str, Any]) -> bytes:
    """Return the receipt's file: the same bytes for the same facts, so that not even a lost newline goes unseen."""
    return (json.dumps({**receipt, "digest": digest_json(receipt)}, indent=2, allow_nan=False) + "\n").encode()


def _find_file_problem(folder: Path, files: dict[str, Any], *, may_lack: str) -> str | None:
    present = {name for name in os.listdir(folder) if name != RECEIPT}
    files = {name: fact for name, fact in files.items() if name in present or not fnmatch(name, may_lack)}
    if present != set(files):
        return f"files are {sorted(present)}, the receipt names {sorted(files)}"
    for name, fact in files.items():
        num_bytes = (folder / name).stat().st_size
        if num_bytes != fact["num_bytes"]:
            return f"{name} has {num_bytes} bytes, the receipt says {fact['num_bytes']}"
        digest = digest_file(folder / name)
        if digest != fact["sha256"]:
            return f"{name} has sha256 {digest}, the receipt says {fact['sha256']}"
    return None
