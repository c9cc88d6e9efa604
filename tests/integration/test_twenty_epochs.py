"""Twenty epochs of a classifier under one schedule, tracked by W&B: the whole flow, with a W&B server on loopback."""

import itertools
import json
from pathlib import Path

import pytest

from tests.integration.test_sequence_classification import CLASSIFIER
from tests.tracker_stores import require_tracker
from tests.wandb_server import KEY, WandbServer
from tests.workspace import Workspace

pytestmark = pytest.mark.slow

NUM_EPOCHS, STEPS_PER_EPOCH = 20, 2
TWENTY_EPOCHS = CLASSIFIER | {
    "measure.waterfall_seconds": 0,
    "ranges": ["0-32"],
    "heldout": "400-432",
    "train.epochs": NUM_EPOCHS,
    "train.schedule_span": "run",
    "train.warmup_steps": 4,
    "tracking.kind": "wandb",
}
CELLS = ("1proc", "2proc")


def compare(workspace: Workspace, server: WandbServer) -> None:
    """Run all stages, as somebody who has a key of that server."""
    workspace.repro(WANDB_API_KEY=KEY, WANDB_BASE_URL=server.url)


def require_twenty_epochs_under_one_schedule(workspace: Workspace, server: WandbServer) -> None:
    """Fail unless W&B has every step of each cell once, whose rate goes up once and down once, and every epoch."""
    runs = {run.name: run for run in server.runs.values()}
    assert set(runs) == {"packages", *CELLS}
    assert len(server.runs) == len(runs)
    for cell in CELLS:
        assert runs[cell].is_finished
        rates = [row["learning_rate"] for row in runs[cell].history.values() if "learning_rate" in row]
        steps = [row["_step"] for row in runs[cell].history.values() if "learning_rate" in row]
        assert sorted(steps) == list(range(1, NUM_EPOCHS * STEPS_PER_EPOCH + 1))
        by_step = [rate for _, rate in sorted(zip(steps, rates, strict=True))]
        signs = [after > before for before, after in itertools.pairwise(by_step)]
        assert signs == [True] * 3 + [False] * (len(by_step) - 4)
        assert by_step[-1] < by_step[3] / 20
        for epoch in range(1, NUM_EPOCHS + 1):
            assert workspace.checkpoint(cell, f"0-32-epoch-{epoch}").is_file()
        epochs = json.loads((workspace.folder / "data/evaluation/evaluation.json").read_bytes())["epochs"][cell]
        assert [one["epoch"] for one in epochs] == list(range(1, NUM_EPOCHS + 1))


def test_every_step_of_twenty_epochs_is_at_wandb_and_their_rate_falls_over_all_of_them(
    tmp_path: Path, project: Path, warm: Path, builtin_rows: Path
) -> None:
    require_tracker("wandb")
    workspace = Workspace.create(
        tmp_path / "project", project=project, changes=TWENTY_EPOCHS, programs=warm, rows=builtin_rows
    )
    with WandbServer() as server:
        compare(workspace, server)
        require_twenty_epochs_under_one_schedule(workspace, server)
        assert server.unknown == []
