"""Which models are evaluated: the base model, and what the cells trained."""

from dataclasses import dataclass
from pathlib import Path

from tasks.inputs.damage import remove_damaged, require_digest, require_whole
from tasks.params import Params
from tasks.process.failure import DataError
from tasks.records.run import RunFile, SegmentReceipt, read_receipt
from tasks.records.sources import BaseModelManifest


@dataclass(frozen=True, kw_only=True)
class ModelToEvaluate:
    """One model to be evaluated."""

    name: str
    """`base`, or the name of the cell that trained it."""
    checkpoint: Path | None
    """The cell's checkpoint; None for the base model."""
    weights_digest: str
    """sha256 of the weights."""
    segment: tuple[str, int] | None = None
    """The range and epoch after which the weights were so; None for the base model and a cell's last weights."""

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.name if self.segment is None else f"{self.name} after {self.segment[0]} epoch {self.segment[1]}"


def list_subjects(params: Params, *, base_model: Path, runs: Path) -> list[ModelToEvaluate]:
    """Return the base model and every cell's last checkpoint.

    Raises DataError (exit code 3) if one is missing or is not, byte for byte, what its manifest or receipt says.
    """
    require_whole(base_model)
    base = ModelToEvaluate(name="base", checkpoint=None, weights_digest=BaseModelManifest.read(base_model).digest)
    return [
        base, *(_make_subject(cell, runs / cell / RunFile.read(runs / cell).final_checkpoint) for cell in params.cells)
    ]  # fmt: skip


def list_epoch_subjects(params: Params, *, runs: Path) -> list[ModelToEvaluate]:
    """Return all cells' checkpoints after every segment, in order; raises DataError as above."""
    subjects = []
    for cell in params.cells:
        folder = runs / cell
        for part in RunFile.read(folder).segments:
            file = folder / part.folder / f"{params.model.name}_{part.range}-epoch-{part.epoch}.pt"
            subjects.append(_make_subject(cell, file, segment=(part.range, part.epoch)))
    return subjects


def _make_subject(cell: str, file: Path, *, segment: tuple[str, int] | None = None) -> ModelToEvaluate:
    try:
        files = read_receipt(file.parent).files
    except DataError as error:
        raise remove_damaged(SegmentReceipt.path_in(file.parent), f"cannot be used ({error})") from None
    promised = files.get(file.name)
    digest = require_digest(file, promised.sha256 if promised else None)
    return ModelToEvaluate(name=cell, checkpoint=file, weights_digest=digest, segment=segment)
