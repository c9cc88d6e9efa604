"""A training as chaotic as they come, ResNet18 with SGD in fp32 and fast mode: it passes, and is evaluated rightly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.museum.museum import ABOUT_SECONDS, Museum
from tests.museum.project import CELLS, Size
from training.workloads import image_classification
from training.workloads.image_classification import open_images

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def museum(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Museum:
    """The right comparison of 1 and 2 processes."""
    size = Size(workload="image_classification", num_rows=(45, 13))
    return Museum(
        tmp_path_factory.mktemp("chaotic"), project, size=size, num_attempts=1,
    )  # fmt: skip


def test_a_right_training_of_a_resnet_passes_and_its_updates_are_one_processs(museum: Museum) -> None:
    outcome = museum.clean
    assert outcome.refusal is None, outcome.says
    assert set(outcome.failed_gates) <= {*ABOUT_SECONDS, "Every rank has a device of its own"}, outcome.says
    assert outcome.results is not None
    verdicts = {gate["name"]: gate["verdict"] for gate in outcome.results["gates"]}
    assert verdicts["Update equivalence"] == verdicts["Loss curves coincide"] == "passed"


def test_both_accuracies_after_every_epoch_are_those_counted_one_image_at_a_time(museum: Museum) -> None:
    data = museum.clean_project / "data"
    evaluation = json.loads((data / "evaluation" / "evaluation.json").read_bytes())
    rows = open_images(data / "slices" / evaluation["heldout"])
    for cell in CELLS:
        assert [(one["range"], one["epoch"]) for one in evaluation["epochs"][cell]] == [("0-45", 1), ("45-58", 1)]
        for one in evaluation["epochs"][cell]:
            checkpoint = data / "runs" / cell / one["checkpoint"]
            model: Any = image_classification.load_model(data / "base_model", checkpoint=checkpoint).eval()
            places = []
            with torch.no_grad():
                for row in range(len(rows)):
                    pixels = image_classification._normalise(rows.collate([row], seq_len=2).input_ids)
                    order = np.argsort(-model(pixels)[0].numpy(), kind="stable").tolist()
                    places.append(order.index(int(rows.labels[row])))
            shares = [np.mean([place < first for place in places]) for first in (1, 5)]
            assert [one["accuracy"], one["accuracy_top5"]] == pytest.approx(shares)
