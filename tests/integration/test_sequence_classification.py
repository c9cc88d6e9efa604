"""The whole flow with a classifier on the built-in labelled texts, and on real abstracts where they stand beside it."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.workspace import SMALL, Workspace

pytestmark = pytest.mark.slow

CLASSIFIER = SMALL | {
    "measure.waterfall_seconds": 1,
    "name": "packages",
    "description": "A small random-weight classifier tells which package a docstring is of.",
    "model.source": "builtin:tiny-modernbert",
    "model.name": "tiny_modernbert",
    "dataset.label": "package",
    "workload": "sequence_classification",
    "ranges": ["0-400"],
    "heldout": "400-600",
    "train.epochs": 2,
    "train.global_batch_size": 16,
    "train.micro_batch_size": 4,
}
EPOCHS = range(1, 3)
CELLS = ("1proc", "2proc")
OF_CLOCKS = (
    "Not data-bound",
    "Only steps were timed",
    "Speedup is plausible",
    "Training bears out the blocks",
    "Quiet enough to tell",
)
"""Gates that a machine on which much else runs may fail."""


@pytest.fixture(scope="module")
def packages(
    tmp_path_factory: pytest.TempPathFactory, project: Path, warm: Path, builtin_rows: Path, empty_store: Path
) -> Workspace:
    """The finished comparison of 1 and 2 processes."""
    folder = tmp_path_factory.mktemp("classes") / "project"
    workspace = Workspace.create(
        folder, project=project, changes=CLASSIFIER, programs=warm, rows=builtin_rows, store=empty_store
    )
    workspace.repro()
    return workspace


def read(workspace: Workspace, path: str) -> Any:
    return json.loads((workspace.folder / path).read_text())


def test_every_gate_that_no_clock_decides_passes_and_speed_was_measured(packages: Workspace) -> None:
    results = read(packages, "reports/results.json")
    verdicts = {gate["name"]: gate["verdict"] for gate in results["gates"] if gate["name"] not in OF_CLOCKS}
    assert verdicts == dict.fromkeys(verdicts, "passed")
    assert {"Update equivalence", "Starts from the base model", "Every sample exactly once"} <= set(verdicts)
    assert [arm["cell"] for arm in results["measurement"]["arms"] if not arm["is_wrapped_baseline"]] == list(CELLS)
    assert results["measurement"]["waterfalls"]


def test_it_learns_and_both_cells_learn_the_same(packages: Workspace) -> None:
    evaluation = read(packages, "data/evaluation/evaluation.json")
    models = evaluation["models"]
    for cell in CELLS:
        assert models[cell]["accuracy"] > models["base"]["accuracy"] + 0.1
        assert models[cell]["accuracy"] == evaluation["epochs"][cell][-1]["accuracy"]
        assert models[cell]["num_targets"] == evaluation["num_rows"]
        assert [one["epoch"] for one in evaluation["epochs"][cell]] == list(EPOCHS)
    assert models["2proc"]["loss"] == pytest.approx(models["1proc"]["loss"], rel=1e-4)
    assert models["base"]["perplexity"] is None


def test_epochs_csv_has_loss_and_accuracy_of_every_epoch(packages: Workspace) -> None:
    evaluation = read(packages, "data/evaluation/evaluation.json")["epochs"]
    rows = list(csv.DictReader((packages.folder / "reports/epochs.csv").open()))
    assert [(row["cell"], int(row["epoch"])) for row in rows] == [(cell, epoch) for cell in CELLS for epoch in EPOCHS]
    for row in rows:
        found = evaluation[row["cell"]][int(row["epoch"]) - 1]
        segment = read(packages, f"data/runs/{row['cell']}/segments/0-400-epoch-{row['epoch']}/segment.json")
        assert float(row["val_accuracy"]) == found["accuracy"]
        assert float(row["val_loss"]) == found["loss"]
        assert float(row["train_loss"]) == pytest.approx(segment["loss"])
        assert float(row["train_seconds"]) == pytest.approx(segment["train_seconds"])
        assert float(row["samples_per_second"]) == pytest.approx(400 / segment["train_seconds"])


def test_the_page_shows_accuracy_and_neither_perplexity_nor_samples(packages: Workspace) -> None:
    page, text = ((packages.folder / "reports" / name).read_text() for name in ("index.html", "report.md"))
    assert (packages.folder / "reports/charts/accuracy_curves.svg").is_file()
    for name in ("time_per_epoch", "average_epoch_time", "measured_speedup", "parallel_efficiency"):
        assert (packages.folder / f"reports/charts/{name}.svg").is_file()
    quality = text.split("## Is the model as good?")[1].split("## What it costs")[0]
    assert re.search(r"\| Model \| Loss \| Accuracy \| Against base \| Tokens \|", quality)
    assert "Time to accuracy" in quality
    assert "Best checkpoint" in quality
    assert "Perplexity" not in quality
    assert "Samples side by side" not in page + text
    assert "nats per sample" in quality


def test_one_more_epoch_trains_only_that_and_goes_on_from_the_rest(packages: Workspace) -> None:
    launches = packages.launches("2proc")
    before = packages.checkpoint("2proc", "0-400-epoch-2").read_bytes()
    packages.change({"train.epochs": 3})
    packages.repro("train@2proc")
    assert packages.launches("2proc") == launches + 1
    assert packages.checkpoint("2proc", "0-400-epoch-2").read_bytes() == before
    entries = read(packages, "data/runs/2proc/run.json")["segments"]
    assert [one["epoch"] for one in entries] == [1, 2, 3]
    segments = [read(packages, f"data/runs/2proc/{one['folder']}/segment.json") for one in entries]
    assert segments[2]["start_checksum"] == segments[1]["parameter_checksums"][0]


def test_subject_categories_of_real_abstracts_are_classes(
    real_data: Path, tmp_path: Path, project: Path, warm: Path, builtin_rows: Path
) -> None:
    changes = CLASSIFIER | {
        "dataset.source": f"path:{real_data / 'arxiv_abstracts.parquet'}",
        "dataset.label": "category",
        "ranges": ["0-200"],
        "heldout": "2000-2100",
    }
    workspace = Workspace.create(
        tmp_path / "project", project=project, changes=changes, programs=warm, rows=builtin_rows
    )
    said = workspace.repro("slice").stdout
    assert "builtin:docstrings: reused the 1000 rows" in said
    names = read(workspace, "data/slices/manifest.json")["class_names"]
    assert len(names) > 100
    assert {"hep-ph", "math.AG", "cs.LG"} <= set(names)
    assert read(workspace, "data/base_model/config.json")["id2label"]["0"] == names[0]
    abstracts = pq.read_table(real_data / "arxiv_abstracts.parquet", columns=["category"]).slice(0, 200)
    labels = np.load(workspace.folder / "data/slices/0-200/labels.npy")
    assert [names[label] for label in labels] == abstracts.column("category").to_pylist()
