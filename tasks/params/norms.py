"""Batch normalisation over the rows of all ranks: which cells have the same rows in it, and which cannot have it.

What is normalised together is part of the work, so that every cell has to have as many rows at once on all of its
ranks: `micro_batch_size` x the shares of the rows.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.params.choices import list_file_names, read_constant
from tasks.params.train import AUTO, TrainParams
from tasks.strategies import count_shares

if TYPE_CHECKING:
    from tasks.params.cells import CellParams
    from tasks.params.sources import ModelParams


def make_own_train(train: TrainParams, cell: "CellParams") -> TrainParams:
    """Return the work of a cell: the comparison's own, in the cell's micro-batches where it says how large."""
    own = cell.micro_batch_size
    return train if own is None else train.model_copy(update={"micro_batch_size": own})


def count_statistics_rows(model: "ModelParams", train: TrainParams, cell: "CellParams") -> int:
    """Return how many rows a cell normalises together, all ranks' of one forward; 0: none, each row by itself."""
    if model.norm != "sync_batch":
        return 0
    shares = count_shares(cell.strategy, cell.world_size, cell.options)
    return shares * make_own_train(train, cell).micro_batch_size


def explain_unfit_norm(model: "ModelParams", train: TrainParams, cells: Mapping[str, "CellParams"]) -> str | None:
    """Return why cells cannot normalise the same rows together, with the remedy; None if they can, or need not."""
    if model.norm != "sync_batch":
        own = [name for name, cell in cells.items() if cell.micro_batch_size is not None]
        if not own:
            return None
        return (
            f"cells.{own[0]}.micro_batch_size: got {cells[own[0]].micro_batch_size} without model.norm sync_batch; "
            "allowed: null, train.micro_batch_size is every cell's"
        )
    if train.exact:
        return "model.norm: got sync_batch with train.exact, whose bits it cannot keep; allowed: exact: false, or group"
    if train.micro_batch_size == AUTO:
        return "train.micro_batch_size: got auto with model.norm sync_batch, where it is work; allowed: a number"
    first = next(iter(cells))
    wanted = count_statistics_rows(model, train, cells[first])
    for name, cell in cells.items():
        if not _syncs(cell.strategy):
            takers = " or ".join(one for one in list_file_names("training/strategies") if _syncs(one))
            return (
                f"model.norm: got sync_batch with cells.{name}.strategy {cell.strategy}; allowed: group, or the "
                f"strategy {takers}"
            )
        rows, shares = count_statistics_rows(model, train, cell), cell.world_size
        if rows != wanted:
            remedy = (
                f"cells.{name}.micro_batch_size: {wanted // shares}"
                if wanted % shares == 0
                else f"a micro_batch_size in {first} such that {shares} ranks can share its rows"
            )
            return (
                f"model.norm: got sync_batch, and cells.{name} would normalise {rows} rows together "
                f"({rows // shares} on each of {shares} ranks), {first} {wanted}; allowed: as many in all cells, so "
                f"{remedy}"
            )
    return None


def _syncs(strategy: str) -> bool:
    return bool(read_constant(f"training/strategies/{strategy}.py", "SYNCS_STATISTICS"))
