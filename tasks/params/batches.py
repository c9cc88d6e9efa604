"""Cells with another global batch than the comparison's: what each then trains, and which of them are refused."""

from typing import TYPE_CHECKING, Any

from tasks.params.cells import CellParams
from tasks.params.train import TrainParams

if TYPE_CHECKING:
    from tasks.params import Params


def make_own_train(train: TrainParams, cell: CellParams, *, seed: int | None = None) -> TrainParams:
    """Return the work of a cell: the comparison's own unless the cell says that its batch is another.

    Warm-up then lasts as many samples, a step of it at least if there was one. `seed`: another one than the work's.
    """
    changes: dict[str, Any] = {} if seed is None else {"seed": seed}
    if cell.batch is not None:
        factor = cell.batch_factor
        growth = {"sqrt": factor**0.5, "linear": float(factor), "none": 1.0}[cell.batch.learning_rate]
        changes |= {
            "global_batch_size": train.global_batch_size * factor,
            "learning_rate": train.learning_rate * growth,
            "warmup_steps": -(-train.warmup_steps // factor),
            "epochs": cell.batch.epochs or train.epochs,
        }
    return train.model_copy(update=changes) if changes else train


def explain_unfit_batches(params: "Params") -> str | None:
    """Return why a cell's batch cannot be judged, with the remedy; None if all can."""
    for name in params.other_trainings:
        where = f"cells.{name}.batch"
        if name == params.baseline:
            return f"{where}: got one in the first cell; allowed: null, it is the baseline"
        if params.measure.scaling == "weak":
            return (
                f"{where}: got one with measure.scaling weak; allowed: scaling strong, since in weak scaling every "
                "batch grows, and none is judged by its quality"
            )
        if params.cells[name].batch_factor == 1:
            return f"{where}.factor: got world_size with one rank; allowed: a number from 2 on"
        own = params.train_of(name)
        if own.learning_rate > 10:
            return f"{where}.learning_rate: makes a peak of {own.learning_rate:g}; allowed: at most 10, so sqrt or none"
        if own.epochs < params.train.epochs:
            return f"{where}.epochs: got {own.epochs}; allowed: at least train.epochs, {params.train.epochs}"
    if params.quality.seeds > 1 and not params.other_trainings:
        return (
            f"quality.seeds: got {params.quality.seeds} without a cell that has another batch; allowed: 1, cells of "
            "the same work are compared step by step"
        )
    return None
