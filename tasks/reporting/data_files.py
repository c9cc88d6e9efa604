"""Figures for machines: metrics.json for `dvc metrics`, epochs.csv and losses.csv for plots and spreadsheets."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tasks.records.arm_figures import select_arm
from tasks.records.outputs import Outputs
from tasks.reporting.cell_results import CellResults, Figures
from tasks.reporting.results import Results
from training.process.files import replace_file, write_json

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def collect_metrics(results: Results) -> dict[str, Any]:
    """Return the few figures that `dvc metrics show` and `diff` print; a withheld one is null."""
    verdicts = [gate.verdict for gate in results.gates]
    losses = {model.model: model for model in results.quality.models}
    cells = {
        cell.cell: {
            "seconds_per_epoch": cell.seconds_per_epoch,
            "tokens_per_second": cell.whole.tokens_per_second,
            "state": cell.standing.state,
            "speedup": cell.speedup,
            "parallel_efficiency": cell.parallel_efficiency,
            **_collect_measured(results, cell),
        }
        for cell in results.cells
    }
    for name, model in losses.items():
        cells.setdefault(name, {})["heldout_loss"] = model.loss
        if model.accuracy is not None:
            cells[name]["heldout_accuracy"] = model.accuracy
        if model.accuracy_tokens is not None:
            cells[name]["heldout_accuracy_tokens"] = model.accuracy_tokens
    gates = {
        "state": results.state,
        "passed": verdicts.count("passed"),
        "failed": verdicts.count("failed"),
        "not_checked": verdicts.count("not checked"),
    }
    return {"gates": gates, **cells}


def _collect_measured(results: Results, cell: CellResults) -> dict[str, Any]:
    """Return what is only known where speed was measured; the speedup is then the measured one."""
    if results.measurement is None:
        return {}
    arm, speedup = select_arm(results.measurement, cell.cell), cell.measured_speedup
    return {
        "speedup_low": None if speedup is None else speedup.low,
        "speedup_high": None if speedup is None else speedup.high,
        "speedup_of_whole_training": cell.whole.speedup,
        "step_seconds": arm.step_seconds.value,
        "measured_tokens_per_second": arm.tokens_per_second,
    }


def write_metrics(path: Path, results: Results) -> None:
    """Write metrics.json, whole or not at all."""
    write_json(path, collect_metrics(results))


def write_epochs(path: Path, results: Results) -> None:
    """Write epochs.csv: one line per cell and epoch, with what the gates leave of the cell's speedup.

    Where rows have classes, with what it came to on held-out rows.
    """
    names = ["num_steps", "num_samples", "num_tokens", "train_seconds", "tokens_per_second", "samples_per_second"]
    names += ["data_wait_share", "loss", "speedup", "parallel_efficiency"]
    rows = [
        [
            *(cell.cell, cell.world_size, cell.standing.state, part.epoch, *(getattr(part, name) for name in names)),
            *_collect_validation(results, cell, part),
        ]
        for cell in results.cells
        for part in cell.epochs
    ]
    validated = ["train_loss", "val_loss", "val_accuracy"] if results.quality.epochs else []
    validated += ["val_accuracy_top5"] if any(one.accuracy_top5 is not None for one in results.quality.epochs) else []
    write_csv(path, ["cell", "world_size", "state", "epoch", *names, *validated], rows)


def _collect_validation(results: Results, cell: CellResults, part: Figures) -> list[float | None]:
    """Return training loss, and loss and accuracies on the held-out rows after the last range of an epoch."""
    found = [one for one in results.quality.epochs if (one.cell, one.epoch) == (cell.cell, part.epoch)]
    return [
        value
        for one in found[-1:]
        for value in (part.loss, one.loss, one.accuracy, *([] if one.accuracy_top5 is None else [one.accuracy_top5]))
    ]


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
