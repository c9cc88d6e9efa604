"""Cells that are openly another training than the baseline: what each then trains, and which of them are refused."""

from collections.abc import Mapping
from typing import Any

from tasks.params.cells import CellParams
from tasks.params.train import TrainParams


def make_own_train(train: TrainParams, cell: CellParams, *, seed: int | None = None) -> TrainParams:
    """Return the work of a cell: the comparison's own unless the cell says that its batch or micro-batch is another.

    Warm-up then lasts as many samples, a step of it at least if there was one; AdamW's memory does where the cell says
    so. `seed`: another one than the work's.
    """
    changes: dict[str, Any] = {} if seed is None else {"seed": seed}
    if cell.micro_batch_size is not None:
        changes["micro_batch_size"] = cell.micro_batch_size
    if cell.batch is not None:
        factor = cell.batch_factor
        growth = {"sqrt": factor**0.5, "linear": float(factor), "none": 1.0}[cell.batch.learning_rate]
        changes |= {
            "global_batch_size": train.global_batch_size * factor,
            "learning_rate": train.learning_rate * growth,
            "warmup_steps": -(-train.warmup_steps // factor),
            "epochs": cell.batch.epochs or train.epochs,
        }
        if cell.batch.betas == "samples":
            # A step keeps what so many steps of the comparison's own batch would.
            changes |= {"adam_beta1": train.adam_beta1**factor, "adam_beta2": train.adam_beta2**factor}
    return train.model_copy(update=changes) if changes else train


def explain_unfit_batches(
    train: TrainParams, cells: Mapping[str, CellParams], *, is_weak: bool, seeds: int
) -> str | None:
    """Return why another training cannot be judged, with the remedy; None if all can. The first is the baseline."""
    others = [name for name, cell in cells.items() if cell.is_other_training]
    for name in others:
        cell = cells[name]
        where, got, remedy = f"cells.{name}.batch", "one", "null"
        if cell.other_training is not None:
            where, got, remedy = f"cells.{name}.strategy", cell.strategy, "a strategy whose update is one process's"
        if name == next(iter(cells)):
            return f"{where}: got {got} in the first cell; allowed: {remedy}, it is the baseline"
        if is_weak:
            return (
                f"{where}: got {got} with measure.scaling weak; allowed: scaling strong, since in weak scaling every "
                "batch grows, and none is judged by its quality"
            )
        if cell.batch is None:
            continue
        where = f"cells.{name}.batch"
        if cell.batch_factor == 1 and cell.other_training is None:
            return f"{where}.factor: got {cell.batch.factor}; allowed: world_size, or a number from 2 on"
        if cell.batch.betas == "samples" and (train.optimizer != "adamw" or cell.batch_factor == 1):
            got = f"train.optimizer {train.optimizer}" if train.optimizer != "adamw" else "factor 1"
            allowed = "steps, or AdamW and a factor from 2 on: there are no betas to change otherwise"
            return f"{where}.betas: got samples with {got}; allowed: {allowed}"
        own = make_own_train(train, cell)
        if own.learning_rate > 10:
            return f"{where}.learning_rate: makes a peak of {own.learning_rate:g}; allowed: at most 10, so sqrt or none"
        if own.epochs < train.epochs:
            return f"{where}.epochs: got {own.epochs}; allowed: at least train.epochs, {train.epochs}"
    if train.seed + seeds > 2**31:
        return f"train.seed: got {train.seed} with quality.seeds: {seeds}; allowed: at most {2**31 - seeds}"
    if seeds > 1 and not others:
        return (
            f"quality.seeds: got {seeds} without a cell that is another training; allowed: 1, cells of "
            "the same work are compared step by step"
        )
    return None
