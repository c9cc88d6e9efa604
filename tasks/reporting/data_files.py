"""Figures for machines: metrics.json for `dvc metrics` and `dvc exp show`, epochs.csv and losses.csv for plots."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tasks.records.outputs import Outputs
from tasks.reporting.results import Results
from tasks.reporting.verdict import sort_by_merit
from training.process.files import replace_file

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def collect_metrics(results: Results) -> dict[str, Any]:
    """Return the few figures that DVC prints: of the cell that the verdict is about, without one of the baseline.

    The speedup is null unless it is proven: a table of experiments may have no room for the state.
    """
    cell = next(iter(sort_by_merit(results)), results.baseline)
    speedup = cell.speedup.value if results.state == "proven" and cell.speedup else None
    rates = {"speedup": speedup, "tokens_per_second": cell.tokens_per_second}
    quality = {
        f"heldout_{name}": value
        for model in results.quality.models
        for name in ("loss", "accuracy")
        if model.model == cell.cell and (value := getattr(model, name)) is not None
    }
    return {"state": results.state, "cell": cell.cell, **rates, **quality}


def write_epochs(path: Path, results: Results) -> None:
    """Write epochs.csv: one line per cell and epoch, with what the gates leave of the cell's speedup.

    Where rows have classes, with what it came to on held-out rows.
    """
    names = ["num_steps", "num_samples", "num_tokens", "train_seconds", "tokens_per_second", "samples_per_second"]
    names += ["data_wait_share", "loss"]
    # After the last range of an epoch.
    validated = {(epoch.cell, epoch.epoch): epoch for epoch in results.quality.epochs}
    measures = ["loss", "accuracy"] if validated else []
    measures += ["accuracy_top5"] * any(epoch.accuracy_top5 is not None for epoch in validated.values())
    rows = []
    for cell in results.cells:
        for part in cell.epochs:
            row = [
                cell.cell,
                cell.world_size,
                cell.standing.state,
                part.epoch,
                *(getattr(part, name) for name in names),
            ]
            if (epoch := validated.get((cell.cell, part.epoch or 0))) is not None:
                row += [part.loss, *(getattr(epoch, name) for name in measures)]
            rows.append(row)
    columns = ["train_loss"] * bool(validated) + [f"val_{name}" for name in measures]
    write_csv(path, ["cell", "world_size", "state", "epoch", *names, *columns], rows)


def write_losses(path: Path, outputs: Outputs) -> None:
    """Write losses.csv: one line per cell and optimizer step with a target; others have no loss."""
    rows = (
        [cell, run.steps.step[at], run.steps.loss[at]]
        for cell, run in outputs.runs.items()
        for at in run.steps.with_loss
    )
    write_csv(path, ["cell", "step", "loss"], rows)


def write_csv(path: Path, names: Sequence[str], rows: Iterable[list[Any]]) -> None:
    """Write the lines one by one, whole or not at all; no text in them is a formula for a spreadsheet."""
    with replace_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([escape_formula(value) for value in row] for row in rows)


def escape_formula(value: Any) -> Any:
    """Return a text that a spreadsheet does not take for a formula: with an apostrophe before; others as they are."""
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def unescape_formula(field: str) -> str:
    """Return the text that `escape_formula` was given."""
    return field[1:] if field.startswith("'") and _is_formula(field) else field


def _is_formula(text: str) -> bool:
    return text.lstrip("'").startswith(_FORMULA_STARTS)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all.

    An older file of that name is replaced, not written into: it may be a hard link into DVC's cache.
    """
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
