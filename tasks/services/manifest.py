"""How a repository differs from what is published of a comparison."""

import hashlib
from pathlib import Path

from tasks.process.failure import DataError
from tasks.records.publication import PublicationManifest
from training.process.files import digest_file


def read_digests(folder: Path) -> dict[str, str]:
    """Return path -> sha256 of every file that the manifest names, and of the manifest itself."""
    digests = {path: file.sha256 for path, file in PublicationManifest.read(folder).files.items()}
    return {**digests, PublicationManifest.NAME: digest_file(PublicationManifest.path_in(folder))}


def read_paths(file: Path) -> set[str]:
    """Return the paths that a published manifest names; none if the file is no manifest of ours."""
    try:
        return set(PublicationManifest.read(file).files)
    except DataError:
        return set()


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
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
