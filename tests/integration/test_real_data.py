"""The whole pipeline on real abstracts with a really pretrained model, where the data stands beside the checkout."""

import json
import math
from pathlib import Path

import pytest

from tests.workspace import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def abstracts(
    real_data: Path, tmp_path_factory: pytest.TempPathFactory, project: Path, warm: Path, empty_store: Path
) -> Workspace:
    """The finished comparison of 1 and 2 processes on the ranges 0-200, 200-600, from the pretrained model."""
    changes = {
        "measure.speed": False,
        "name": "abstracts",
        "description": "A small pretrained Llama on arXiv abstracts.",
        "model.source": f"path:{real_data / 'stories260k'}",
        "model.name": "stories260k",
        "dataset.source": f"path:{real_data / 'arxiv_abstracts.parquet'}",
        "ranges": ["0-200", "200-600"],
        "heldout": "2000-2100",
        "train.epochs": 1,
        "train.seq_len": 128,
        "train.learning_rate": 0.003,
    }
    folder = tmp_path_factory.mktemp("real") / "project"
    workspace = Workspace.create(folder, project=project, changes=changes, programs=warm, store=empty_store)
    workspace.repro()
    return workspace


def test_training_on_real_abstracts_beats_the_pretrained_base_in_every_cell(abstracts: Workspace) -> None:
    evaluation = json.loads((abstracts.folder / "data/evaluation/evaluation.json").read_text())
    models = evaluation["models"]
    assert set(models) == {"base", "1proc", "2proc"}
    for cell in ("1proc", "2proc"):
        assert models[cell]["loss"] < models["base"]["loss"] - 0.5
        assert models[cell]["perplexity"] == pytest.approx(math.exp(models[cell]["loss"]))
        assert models[cell]["num_tokens"] == models["base"]["num_tokens"] == evaluation["num_tokens"]


def test_one_and_two_processes_reach_the_same_loss_on_real_text(abstracts: Workspace) -> None:
    models = json.loads((abstracts.folder / "data/evaluation/evaluation.json").read_text())["models"]
    assert models["2proc"]["loss"] == pytest.approx(models["1proc"]["loss"], rel=1e-4)


def test_checkpoints_bear_their_semantic_names(abstracts: Workspace) -> None:
    for cell in ("1proc", "2proc"):
        assert abstracts.checkpoint(cell, "0-200-epoch-1").name == "stories260k_0-200-epoch-1.pt"
        assert abstracts.checkpoint(cell, "200-600-epoch-1").name == "stories260k_200-600-epoch-1.pt"


def test_the_gates_on_correctness_pass_on_real_text(abstracts: Workspace) -> None:
    results = json.loads((abstracts.folder / "reports/results.json").read_text())
    verdicts = {gate["name"]: gate["verdict"] for gate in results["gates"]}
    for name in ("Every sample exactly once", "Equal tokens", "Same parameters on all ranks", "Loss curves coincide"):
        assert verdicts[name] == "passed", name
