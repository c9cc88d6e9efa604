"""Folders that are whole or absent, and prove what they are by a receipt; standard library only."""

import contextlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.files import digest_of_file, digest_of_json, sync_to_disk

RECEIPT = "receipt.json"

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def sealed_folder(destination: Path, *, fingerprint: str, facts: dict[str, Any]) -> Iterator[Path]:
    """Yield a temporary folder beside `destination`; on success it is on disk, sealed, and takes that name.

    The receipt inside holds the fingerprint, the facts, every file's size and sha256, and a digest of itself. At any
    point of a crash there is either no `destination` or a whole one; `remove_unfinished` clears the rest.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f"{destination.name}.tmp-{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        yield temporary
        files = sorted(temporary.iterdir())
        for file in files:
            sync_to_disk(file)
        receipt = {
            "fingerprint": fingerprint,
            **facts,
            "files": {file.name: {"sha256": digest_of_file(file), "num_bytes": file.stat().st_size} for file in files},
        }
        text = json.dumps({**receipt, "digest": digest_of_json(receipt)}, indent=2, allow_nan=False)
        (temporary / RECEIPT).write_text(text + "\n", encoding="utf-8")
        sync_to_disk(temporary / RECEIPT)
        sync_to_disk(temporary)
        temporary.rename(destination)
        sync_to_disk(destination.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def problem_with(folder: Path, *, fingerprint: str) -> str | None:
    """Return None if the folder is whole and bears the fingerprint, else one line saying what is wrong.

    Reads and hashes every file.
    """
    try:
        receipt = json.loads((folder / RECEIPT).read_bytes())
        digest = receipt.pop("digest")
        if digest != digest_of_json(receipt):
            return f"{RECEIPT} was altered: its own digest does not match"
        if receipt["fingerprint"] != fingerprint:
            return f"fingerprint is {receipt['fingerprint']}, wanted {fingerprint}"
        return _problem_with_files(folder, receipt["files"])
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{RECEIPT} is unreadable: {type(error).__name__}: {error}"


def set_aside(folder: Path, problem: str) -> None:
    """Take a broken folder out of use, loudly: it is renamed, so that nothing ever loads it again."""
    aside = folder.with_name(f"{folder.name}.broken-{uuid.uuid4().hex[:8]}")
    folder.rename(aside)
    _log.warning("NOT USED: %s: %s; kept as %s", folder, problem, aside.name)


def remove_unfinished(parent: Path) -> None:
    """Remove temporary folders that a crash has left."""
    for leftover in parent.glob("*.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _problem_with_files(folder: Path, files: dict[str, Any]) -> str | None:
    present = {name for name in os.listdir(folder) if name != RECEIPT}
    if present != set(files):
        return f"files are {sorted(present)}, the receipt names {sorted(files)}"
    for name, fact in files.items():
        num_bytes = (folder / name).stat().st_size
        if num_bytes != fact["num_bytes"]:
            return f"{name} has {num_bytes} bytes, the receipt says {fact['num_bytes']}"
        digest = digest_of_file(folder / name)
        if digest != fact["sha256"]:
            return f"{name} has sha256 {digest}, the receipt says {fact['sha256']}"
    return None
