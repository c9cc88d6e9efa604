"""Accuracy after every epoch, by hand: two ranges of one epoch; 1proc needs 6 and 4 s, 2proc 4 and 2.4 s."""

import csv
import json
from pathlib import Path
from typing import Any

from tasks.reporting.collect import collect_results
from tasks.reporting.data_files import collect_metrics, write_epochs
from tasks.reporting.quality import list_accuracies
from tasks.reporting.results import Results
from tests.tasks.reporting.comparison import PARAMS, end_checksum, outputs_of, write_comparison
from tests.tasks.reporting.rendered import markdown_of
from training.process.files import write_json

ACCURACIES = {"1proc": (0.5, 0.75), "2proc": (0.75, 0.75)}


def classified(folder: Path, shares: dict[str, tuple[float, float]] | None = None, **quality: Any) -> dict[str, Any]:
    """Write a finished comparison of classifiers with these accuracies after each range; return its params."""
    params = write_comparison(folder, params={**PARAMS, "quality": quality})
    file = folder / "evaluation" / "evaluation.json"
    evaluation = json.loads(file.read_text())
    evaluation["epochs"] = {
        cell: [
            {"range": part, "epoch": 1, "checkpoint": f"segments/{part}-epoch-1/tiny_{part}-epoch-1.pt"}
            | {"parameter_checksum": end_checksum(first_step)}
            | {"loss": 2 - share, "accuracy": share, "num_tokens": 16, "num_targets": 4}
            for part, share, first_step in zip(PARAMS["ranges"], both, (1, 3), strict=True)
        ]
        for cell, both in (shares or ACCURACIES).items()
    }
    evaluation["samples"] = []
    for name, model in evaluation["models"].items():
        model["accuracy"] = 0.25 if name == "base" else evaluation["epochs"][name][-1]["accuracy"]
        del model["perplexity"]
    write_json(file, evaluation)
    return params


def results_of(folder: Path, **quality: Any) -> Results:
    return collect_results(outputs_of(folder, classified(folder, **quality)))


def test_best_is_the_first_of_the_most_accurate_and_last_the_last(tmp_path: Path) -> None:
    found = list_accuracies(outputs_of(tmp_path, classified(tmp_path)))
    marks = [(one.cell, one.range, one.is_best, one.is_last, one.step, one.train_seconds) for one in found]
    assert marks == [
        ("1proc", "0-8", False, False, 2, 6.0),
        ("1proc", "8-16", True, True, 4, 10.0),
        ("2proc", "0-8", True, False, 2, 4.0),
        ("2proc", "8-16", False, True, 4, 6.4),
    ]


def test_the_figures_stand_in_csv_metrics_and_markdown(tmp_path: Path) -> None:
    results = results_of(tmp_path)
    write_epochs(tmp_path / "epochs.csv", results)
    rows = list(csv.DictReader((tmp_path / "epochs.csv").open()))
    assert [(row["cell"], row["val_accuracy"], row["val_loss"]) for row in rows] == [
        ("1proc", "0.75", "1.25"), ("2proc", "0.75", "1.25"),
    ]  # fmt: skip
    assert [float(row["train_loss"]) for row in rows] == [float(row["loss"]) for row in rows]
    assert collect_metrics(results)["heldout_accuracy"] == 0.75
    assert "| 2proc | 75.0 % | 1 | 75.0 % |" in markdown_of(results)
