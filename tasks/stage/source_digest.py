"""What a local source holds, as one digest."""

from pathlib import Path

from training.files import digest_of_file, digest_of_json


def digest_of_source(path: Path) -> str | None:
    """Return the sha256 of a local file or of a folder's files by name; None if there is nothing."""
    if path.is_file():
        return digest_of_file(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return digest_of_json({file.relative_to(path).as_posix(): digest_of_file(file) for file in files})
    return None
