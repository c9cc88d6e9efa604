"""Comparisons as users have them, all stages on two cards that are not there, to what a tracker or the Hub was given.

Every loss is 0 there, so the gates that hold losses against each other fail: the speedup has to be withheld everywhere.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.extras import skip_without
from tests.hub_server import HubServer
from tests.phantom.cards import CARDS
from tests.phantom.counts import read_counts
from tests.wandb_server import KEY, WandbServer
from tests.workspace import SMALL, Workspace

pytestmark = pytest.mark.slow

OnPhantom = Callable[..., Path]
_NUM_EPOCHS, _STEPS_PER_EPOCH, _CELLS = 20, 2, ("1proc", "2proc")
_TWENTY_EPOCHS = SMALL | {
    "name": "packages",
    "description": "A small random-weight classifier tells which package a docstring is of.",
    "model.source": "builtin:tiny-modernbert",
    "model.name": "tiny_modernbert",
    "dataset.label": "package",
    "workload": "sequence_classification",
    "ranges": ["0-32"],
    "heldout": "400-432",
    "train.epochs": _NUM_EPOCHS,
    "train.global_batch_size": 16,
    "train.micro_batch_size": 4,
    "train.precision": "bf16",
    "train.schedule_span": "run",
    "train.warmup_steps": 4,
    "tracking.kind": "wandb",
}
_TOKEN = "hf_canaryCanaryCanaryCanaryCanary03"


def _require_cards(workspace: Workspace, counts: Path) -> None:
    """Fail unless both cells trained on cards, each rank on its own, and nobody asked for what has no answer."""
    machine = json.loads((workspace.folder / "data/fingerprint/machine.json").read_bytes())
    assert [gpu["name"] for gpu in machine["gpus"]] == [CARDS["H100-80"].name] * 2
    for cell in _CELLS:
        assert json.loads((workspace.folder / f"data/runs/{cell}/run.json").read_bytes())["device"] == "cuda"
    assert {frozenset(one.devices) for one in read_counts(counts) if one.devices} == {frozenset({0}), frozenset({1})}
    logs = [file.read_text() for file in (workspace.folder / ".work").rglob("*.log")]
    assert logs
    assert not [log for log in logs if "phantom:" in log]


def _require_one_schedule(workspace: Workspace, server: WandbServer) -> None:
    """Fail unless W&B has every step of each cell once, whose rate goes up once and down once, and every epoch."""
    runs = {run.name: run for run in server.runs.values()}
    assert set(runs) == {"packages", *_CELLS}
    assert len(server.runs) == len(runs)
    for cell in _CELLS:
        assert runs[cell].is_finished
        rows = [row for row in runs[cell].history.values() if "learning_rate" in row]
        assert sorted(row["_step"] for row in rows) == list(range(1, _NUM_EPOCHS * _STEPS_PER_EPOCH + 1))
        rates = [row["learning_rate"] for row in sorted(rows, key=lambda row: row["_step"])]
        signs = [after > before for before, after in itertools.pairwise(rates)]
        assert signs == [True] * 3 + [False] * (len(rates) - 4)
        assert rates[-1] < rates[3] / 20
        for epoch in range(1, _NUM_EPOCHS + 1):
            assert workspace.checkpoint(cell, f"0-32-epoch-{epoch}").is_file()
        epochs = json.loads((workspace.folder / "data/evaluation/evaluation.json").read_bytes())["epochs"][cell]
        assert [one["epoch"] for one in epochs] == list(range(1, _NUM_EPOCHS + 1))


def test_twenty_epochs_of_a_classifier_on_cards_are_at_wandb_without_a_speedup(
    on_phantom: OnPhantom, phantom_warm: Path, project: Path, tmp_path: Path
) -> None:
    skip_without("wandb")
    counts = on_phantom("H100-80", num_cards=2)
    workspace = Workspace.create(tmp_path / "project", project=project, changes=_TWENTY_EPOCHS, programs=phantom_warm)
    with WandbServer() as server:
        workspace.repro(WANDB_API_KEY=KEY, WANDB_BASE_URL=server.url)
        assert server.unknown == []
    _require_one_schedule(workspace, server)
    _require_cards(workspace, counts)
    (summary,) = [run.summary for run in server.runs.values() if run.name == "2proc"]
    # Which gates fail beside it is chance: what no kernel wrote is whatever the memory held before.
    state, gates, _ = summary["speedup"].split(": ", maxsplit=2)
    assert state == "withheld"
    assert "Update equivalence" in gates.split(", ")
    assert "final/speedup" not in summary


def test_instructions_learned_on_cards_that_shard_the_model_are_a_branch_per_epoch(
    on_phantom: OnPhantom, phantom_warm: Path, project: Path, tmp_path: Path
) -> None:
    counts = on_phantom("H100-80", num_cards=2)
    changes = SMALL | {
        "name": "instructions",
        "dataset.source": "builtin:instructions",
        "dataset.template": "dolly",
        "workload": "instruction",
        "train.epochs": 2,
        "train.seq_len": 160,
        "train.packing": True,
        "ranges": ["0-32"],
        "heldout": "160-176",
        "train.precision": "bf16",
        "cells.2proc.strategy": "fsdp2",
        "upload.repo_id": "owner/tiny",
        "upload.revisions": "per_epoch",
    }
    workspace = Workspace.create(tmp_path / "project", project=project, changes=changes, programs=phantom_warm)
    workspace.repro("report")
    _require_cards(workspace, counts)
    with HubServer(tokens=(_TOKEN,)) as hub:
        # A program that starts anew: where the Hub is, is asked when its client is imported.
        Workspace(workspace.folder).repro(
            "--single-item", "upload", **hub.environment(cache=tmp_path / "cache", token=_TOKEN)
        )
        repo = hub.repos["model", "owner/tiny"]
        messages = {branch: [message for _, message, _ in commits] for branch, commits in repo.branches.items()}
    assert messages == {
        f"epoch-{epoch}": ["initial commit", f"instructions: cell 2proc, epoch-{epoch}"] for epoch in (1, 2)
    }
