"""Comparisons as users have them, all stages on two cards that are not there, to what a tracker or the Hub was given.

Every loss is 0 there, so the gates that hold losses against each other fail: the speedup has to be withheld everywhere.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.extras import skip_without
from tests.hub_server import HubServer
from tests.integration.test_instruction import INSTRUCTIONS
from tests.integration.test_twenty_epochs import TWENTY_EPOCHS, compare, require_twenty_epochs_under_one_schedule
from tests.phantom.cards import CARDS
from tests.phantom.counts import read_counts
from tests.wandb_server import WandbServer
from tests.workspace import Workspace

pytestmark = pytest.mark.slow

OnPhantom = Callable[..., Path]
_TOKEN = "hf_canaryCanaryCanaryCanaryCanary03"


def _require_cards(workspace: Workspace, counts: Path) -> None:
    """Fail unless both cells trained on cards, each rank on its own, and nobody asked for what has no answer."""
    machine = json.loads((workspace.folder / "data/fingerprint/machine.json").read_bytes())
    assert [gpu["name"] for gpu in machine["gpus"]] == [CARDS["H100-80"].name] * 2
    for cell in ("1proc", "2proc"):
        assert json.loads((workspace.folder / f"data/runs/{cell}/run.json").read_bytes())["device"] == "cuda"
    assert {frozenset(one.devices) for one in read_counts(counts) if one.devices} == {frozenset({0}), frozenset({1})}
    logs = [file.read_text() for file in (workspace.folder / ".work").rglob("*.log")]
    assert logs
    assert not [log for log in logs if "phantom:" in log]


def test_twenty_epochs_of_a_classifier_on_cards_are_at_wandb_without_a_speedup(
    on_phantom: OnPhantom, phantom_warm: Path, project: Path, tmp_path: Path
) -> None:
    skip_without("wandb")
    counts = on_phantom("H100-80", num_cards=2)
    changes = TWENTY_EPOCHS | {"train.precision": "bf16"}
    workspace = Workspace.create(tmp_path / "project", project=project, changes=changes, programs=phantom_warm)
    with WandbServer() as server:
        compare(workspace, server)
        assert server.unknown == []
    require_twenty_epochs_under_one_schedule(workspace, server)
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
    changes = INSTRUCTIONS | {
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
