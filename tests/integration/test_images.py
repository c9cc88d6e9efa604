"""The whole pipeline on images: the built-in digits, from nothing to the report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.workspace import Workspace
from training.data.image_rows import open_images
from training.workloads import image_classification

pytestmark = pytest.mark.slow

SMALL = {
    "description": "Images for tests.",
    "train.epochs": 2,
    "train.global_batch_size": 8,
    "train.micro_batch_size": 2,
    "train.learning_rate": 0.01,
    "train.warmup_steps": 4,
    # Else the curves of a right training part after some steps (docs/decisions.md,
    # "ResNet18 has group normalisation").
    "train.exact": True,
    "train.precision": "fp32",
    "train.augment": "flip_shift",
    "train.threads_per_rank": 1,
    "train.log_every_steps": 1,
    "cells": {"1proc": {"strategy": "single", "world_size": 1}, "2proc": {"strategy": "ddp", "world_size": 2}},
    "measure": {"speed": False},
}


def finished(folder: Path, project: Path, changes: dict[str, Any], programs: Path) -> Workspace:
    """Return a workspace in which the preset has run to its end, so changed."""
    workspace = Workspace.create(folder, project=project, changes={}, programs=programs)
    (folder / "params.yaml").write_bytes((folder / "presets" / "resnet18-imagefolder.yaml").read_bytes())
    workspace.change(SMALL | changes)
    workspace.repro()
    return workspace


def read(workspace: Workspace, path: str) -> Any:
    return json.loads((workspace.folder / path).read_text())


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory, project: Path, warm: Path) -> Workspace:
    """The finished comparison of 1 and 2 processes on 56 digits of 16 x 16 pixels, evaluated on 40."""
    changes = {
        "dataset.source": "builtin:digits",
        "dataset.image_size": 16,
        "ranges": ["0-56"],
        "heldout": "1757-1797",
    }
    return finished(tmp_path_factory.mktemp("digits") / "project", project, changes, warm)


def test_no_gate_fails_and_the_certificate_and_the_first_loss_are_checked(digits: Workspace) -> None:
    gates = {gate["name"]: gate for gate in read(digits, "reports/results.json")["gates"]}
    assert [name for name, gate in gates.items() if gate["verdict"] == "failed"] == []
    for name in ("Update equivalence", "Starts from the base model", "Same parameters on all ranks"):
        assert gates[name]["verdict"] == "passed", gates[name]
    for name in ("Every sample exactly once", "Equal tokens", "Loss curves coincide"):
        assert gates[name]["verdict"] == "passed", gates[name]


def test_both_accuracies_after_every_epoch_are_those_counted_one_image_at_a_time(digits: Workspace) -> None:
    rows = open_images(digits.folder / "data/slices/1757-1797")
    evaluation = read(digits, "data/evaluation/evaluation.json")
    for cell in ("1proc", "2proc"):
        assert [one["epoch"] for one in evaluation["epochs"][cell]] == [1, 2]
        for one in evaluation["epochs"][cell]:
            checkpoint = digits.folder / "data/runs" / cell / one["checkpoint"]
            model = image_classification.load_model(digits.folder / "data/base_model", checkpoint=checkpoint).eval()
            top1, top5 = 0, 0
            with torch.no_grad():
                for row in range(len(rows)):
                    batch = rows.collate([row], seq_len=2)
                    pixels = image_classification._normalise(batch.input_ids)
                    order = np.argsort(-model(pixels)[0].numpy(), kind="stable").tolist()
                    place = order.index(int(rows.labels[row]))
                    top1, top5 = top1 + (place == 0), top5 + (place < 5)
            assert (one["accuracy"], one["accuracy_top5"]) == (
                pytest.approx(top1 / len(rows)),
                pytest.approx(top5 / len(rows)),
            )
