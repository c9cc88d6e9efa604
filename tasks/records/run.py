"""data/runs/<cell>/: one cell's training and its segments; and what is published of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import TypeAdapter

from tasks.records.facts import NodeFacts, Record, SpreadFacts
from tasks.records.stage_file import StageFile, damaged, read_checked
from training.process.files import digest_file, digest_json
from training.record.segment_facts import SEGMENT_FILE, SegmentFacts
from training.state.receipt import RECEIPT

_SEGMENT = TypeAdapter(SegmentFacts)


class SealedFile(Record):
    """A file whose content is vouched for."""

    sha256: str
    """Of its bytes."""
    num_bytes: int
    """Its size."""

    @classmethod
    def describe(cls, file: Path) -> Self:
        """Return what stands in the file now."""
        return cls(sha256=digest_file(file), num_bytes=file.stat().st_size)


class SegmentReceipt(StageFile):
    """receipt.json of a finished segment, as far as stages read it (training/state/receipt.py writes it)."""

    NAME: ClassVar[str] = RECEIPT

    files: dict[str, SealedFile]
    """Name -> what is there."""


def read_receipt(folder: Path) -> SegmentReceipt:
    """Return what seals the segment in that folder; raises DataError if it is missing, or is not as it was written."""
    path = SegmentReceipt.path_in(folder)
    receipt, content = SegmentReceipt.read(folder), json.loads(path.read_bytes())
    if content.pop("digest", None) != digest_json(content):
        raise damaged(path, ValueError("it was altered: its own digest does not match"))
    return receipt


def require_sealed(file: Path) -> None:
    """Raise DataError, naming the file, unless its bytes are those that the receipt beside it vouches for."""
    files = read_receipt(file.parent).files
    try:
        if (result := digest_file(file)) != (wanted := files[file.name].sha256):
            raise ValueError(f"sha256 is {result}, its receipt says {wanted}")
    except (OSError, ValueError, KeyError) as error:
        raise damaged(file, error) from None


def read_segment(folder: Path) -> SegmentFacts:
    """Return what the ranks wrote of the segment in that folder.

    Raises DataError, naming the file, if it is missing, damaged or not what the segment's receipt vouches for.
    """
    require_sealed(folder / SEGMENT_FILE)
    return read_checked(folder / SEGMENT_FILE, _SEGMENT)


class NodeEntry(NodeFacts):
    """One of several machines."""

    driver: str | None
    """Version of its NVIDIA driver."""
    versions: dict[str, str | None]
    """Versions of Python and of what computes there."""


class NodesFile(StageFile):
    """nodes.json in the work folder of ranks that were on several machines."""

    NAME: ClassVar[str] = "nodes.json"

    nodes: list[NodeEntry]
    """By their number, the head first."""


class SegmentEntry(Record):
    """A segment of a cell."""

    range: str
    """Rows of the data set, `start-end`, end exclusive."""
    epoch: int
    """Pass over the range, from 1."""
    fingerprint: str
    """Digest of everything that its content depends on."""
    folder: str
    """Where it lies below the folder of the run."""
    rows_digest: str = ""
    """sha256 of the rows that it was trained on; empty in a file of an earlier version."""


class CellFacts(SpreadFacts):
    """What is known of a cell's training before it begins."""

    options: dict[str, Any] = {}
    """Options of the strategy."""
    oversubscribe: bool = False
    """Whether they might share a GPU."""
    exact: bool = False
    """Whether the weights do not depend on the number of ranks, to the bit."""
    model_name: str
    """Short name of the model in checkpoint files."""
    base_model_digest: str
    """Digest of the base model."""
    numerics_version: int
    """NUMERICS_VERSION of what trained it."""
    machine_digest: str
    """Digest of the machine's facts."""


class RunFile(CellFacts, StageFile):
    """run.json: one cell's whole training."""

    NAME: ClassVar[str] = "run.json"

    nodes: list[NodeEntry] = []
    """The machines, where there were several."""
    backend: str | None = None
    """What carried the collectives; null for a single rank."""
    train: dict[str, Any]
    """The section `train` of params.yaml that it was trained with."""
    workload: str
    """The ML problem."""
    segments: list[SegmentEntry]
    """In the order of training."""
    final_checkpoint: str
    """Path of the last checkpoint below the folder of the run."""


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
        results = {file.relative_to(folder).as_posix(): SealedFile.describe(file) for file in files}
        return cls(comparison=comparison, cell=cell, final=final, files=results)

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
