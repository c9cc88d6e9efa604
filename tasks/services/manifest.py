"""The list of files of a publication, with their hashes, and how a repository differs from it."""

import hashlib
import json
from pathlib import Path
from typing import Any

from training.process.files import digest_file, write_json

MANIFEST = "manifest.json"


def write_manifest(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Write `folder/manifest.json`: the facts and `files`, path -> {"sha256", "num_bytes"}; return it."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / MANIFEST)
    manifest = {
        **facts,
        "files": {
            file.relative_to(folder).as_posix(): {
                "sha256": digest_file(file),
                "num_bytes": file.stat().st_size,
            }
            for file in files
        },
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def read_digests(folder: Path) -> dict[str, str]:
    """Return path -> sha256 of every file that the manifest names, and of the manifest itself."""
    files = json.loads((folder / MANIFEST).read_bytes())["files"]
    digests = {path: facts["sha256"] for path, facts in files.items()}
    return {**digests, MANIFEST: digest_file(folder / MANIFEST)}


def read_paths(file: Path) -> set[str]:
    """Return the paths that a published manifest names; none if the file is no manifest of ours."""
    try:
        files = json.loads(file.read_bytes())["files"]
    except (ValueError, KeyError, TypeError):
        return set()
    return set(files) if isinstance(files, dict) else set()


def list_differences(remote: dict[str, str], folder: Path, digests: dict[str, str]) -> list[str]:
    """Return the paths that the repository lacks or holds with other content than `digests` says.

    `remote`: path -> sha256 (64 hex digits) or git's hash (40), as the Hub has one or the other.
    """
    return [
        path
        for path, sha256 in sorted(digests.items())
        if path not in remote
        or remote[path] != (sha256 if len(remote[path]) == 64 else compute_git_hash(folder / path))
    ]


def compute_git_hash(file: Path) -> str:
    """Return the hash under which git keeps the file's content (sha1, hex)."""
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
