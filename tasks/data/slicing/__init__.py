"""What the stage `slice` makes of rows: texts become tokens (tokens.py); what is no text has a file of its own here."""

from pathlib import Path
from typing import Any, Protocol

from tasks.data.slicing import tokens
from tasks.params import Params
from tasks.params.sources import RowRange
from training.registry import has_file, import_file


class Slicer(Protocol):
    """The rows of a data set, and how slices of them become arrays."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the arrays depend on, beside the rows."""

    @property
    def about(self) -> dict[str, Any]:
        """What the list of all slices says of them: fields of SlicesManifest."""

    def digest_rows(self, part: RowRange) -> str:
        """Return the sha256 of the slice's rows."""

    def write(self, part: RowRange, folder: Path) -> dict[str, Any]:
        """Write the slice's .npy files; return what its manifest says of them. DataError if no row of it is left."""


class SlicingFile(Protocol):
    """What a file of this folder offers; one that bears the name of a workload is of it alone."""

    def open_rows(self, params: Params, *, raw: Path, base_model: Path) -> Slicer:
        """Return the rows that the stage `download` has left in `raw`."""


def find_slicing(workload: str) -> SlicingFile:
    """Return the file for the rows of a workload."""
    file: SlicingFile = tokens
    if has_file("tasks.data.slicing", workload):
        file = import_file("tasks.data.slicing", workload)
    return file
