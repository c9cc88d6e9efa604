"""reports/hub/ and data/upload.json: what is published of a comparison, and what became of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from tasks.records.run import SealedFile
from tasks.records.stage_file import StageFile


class PublicationManifest(StageFile):
    """What is published."""

    NAME: ClassVar[str] = "manifest.json"

    comparison: str
    """Name of the comparison."""
    cell: str
    """Name of the cell whose weights are published."""
    final: str
    """Path of the checkpoint of the weights, below the folder of its run."""
    files: dict[str, SealedFile]
    """Path below the folder -> what is there, of all files but this one."""

    @classmethod
    def describe(cls, folder: Path, *, comparison: str, cell: str, final: str) -> Self:
        """Return the manifest of the files that the folder holds."""
        files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / cls.NAME)
        found = {file.relative_to(folder).as_posix(): SealedFile.describe(file) for file in files}
        return cls(comparison=comparison, cell=cell, final=final, files=found)

    @property
    def extent(self) -> str:
        """How much it is, in words."""
        return f"{len(self.files)} files ({sum(file.num_bytes for file in self.files.values()) / 1e6:.1f} MB)"


class UploadFile(StageFile):
    """What became of a publication; written last, since a stage that could not publish is not done."""

    status: Literal["staged", "published"]
    """staged: nobody asked for more."""
    repo_id: str | None = None
    """Of the repository on the Hub."""
    commit: str | None = None
    """Of that repository, with these files."""
    url: str | None = None
    """Address of that commit."""
    cell: str
    """Name of the cell whose weights are published."""
    num_files: int
    """Files, without the manifest."""
    revisions: Mapping[str, str | None] = {}
    """Branch with the weights after an epoch -> its commit; null where it is staged only."""
