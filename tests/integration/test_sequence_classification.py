"""The whole flow with a classifier on the built-in labelled texts, and on real abstracts where they stand beside it."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.workspace import SMALL, Workspace

pytestmark = pytest.mark.slow

CLASSIFIER = SMALL | {
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


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Workspace:
    """The finished comparison of 1 and 2 processes."""
    workspace = Workspace.create(tmp_path_factory.mktemp("classes") / "project", project=project, changes=CLASSIFIER)
    workspace.flow()
    return workspace


def read(workspace: Workspace, path: str) -> Any:
    return json.loads((workspace.folder / path).read_text())


def test_every_gate_passes_and_the_updates_of_two_ranks_are_certified(packages: Workspace) -> None:
    results = read(packages, "reports/results.json")
    assert {gate["name"]: gate["verdict"] for gate in results["gates"] if gate["verdict"] == "failed"} == {}
    verdicts = {gate["name"]: gate["verdict"] for gate in results["gates"]}
    for name in ("Update equivalence", "Starts from the base model", "Every sample exactly once", "Equal tokens"):
        assert verdicts[name] == "passed", name
    assert results["cells"][1]["measured_speedup"] is not None
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
    assert "perplexity" not in models["base"]


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
    for name in ("time_per_epoch", "average_epoch_time", "speedup", "parallel_efficiency"):
        assert (packages.folder / f"reports/charts/{name}.svg").is_file()
    quality = text.split("## Is the model as good?")[1].split("## What it costs")[0]
    assert re.search(r"\| Model \| Loss \| Accuracy \| Against base \| Tokens \|", quality)
    assert "Time to accuracy" in quality
    assert "Best checkpoint" in quality
    assert "Perplexity" not in quality
    assert "Samples side by side" not in page + text
    assert "nats per sample" in quality


def test_one_more_epoch_trains_only_that_and_keeps_the_rest(packages: Workspace) -> None:
    launches = packages.launches("2proc")
    before = packages.checkpoint("2proc", "0-400-epoch-2").read_bytes()
    packages.change({"train.epochs": 3})
    packages.repro("evaluate")
    assert packages.launches("2proc") == launches + 1
    assert packages.checkpoint("2proc", "0-400-epoch-2").read_bytes() == before
    assert [one["epoch"] for one in read(packages, "data/evaluation/evaluation.json")["epochs"]["2proc"]] == [1, 2, 3]


def test_subject_categories_of_real_abstracts_are_classes(real_data: Path, tmp_path: Path, project: Path) -> None:
    changes = CLASSIFIER | {
        "dataset.source": f"path:{real_data / 'arxiv_abstracts.parquet'}",
        "dataset.label": "category",
        "ranges": ["0-200"],
        "heldout": "25000-25100",
        "train.epochs": 1,
        "measure.speed": False,
    }
    workspace = Workspace.create(tmp_path / "project", project=project, changes=changes)
    workspace.repro("train@1proc")
    names = read(workspace, "data/slices/manifest.json")["class_names"]
    assert len(names) > 100
    assert {"hep-ph", "math.AG", "cs.LG"} <= set(names)
    assert read(workspace, "data/base_model/config.json")["id2label"]["0"] == names[0]
    segment = read(workspace, "data/runs/1proc/segments/0-200-epoch-1/segment.json")
    assert (segment["num_samples"], segment["num_targets"]) == (200, 200)
