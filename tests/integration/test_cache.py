"""What is done is not done again, and what is killed goes on: real DVC, real Prefect flow, real torchrun."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.integration.conftest import processes_in
from tests.workspace import Workspace

pytestmark = pytest.mark.slow

STAGES = ["fingerprint", "download", "slice", "measure", "train@1proc", "train@2proc", "evaluate", "report", "upload"]
CELLS = ["1proc", "2proc"]


def _weights(checkpoint: Path) -> str:
    """Return the sha256 over the sorted parameters' bytes."""
    state = torch.load(checkpoint, weights_only=True)
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode() + state[name].numpy().tobytes())
    return digest.hexdigest()


def _digests(workspace: Workspace) -> dict[str, str]:
    """Return the sha256 of every file of the runs' output."""
    runs = workspace.folder / "data" / "runs"
    files = sorted(file for file in runs.rglob("*") if file.is_file())
    return {str(file.relative_to(runs)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _launches(workspace: Workspace) -> list[int]:
    return [workspace.launches(cell) for cell in CELLS]


def test_a_comparison_in_a_fresh_clone_changes_no_file_of_git_and_leaves_nothing_to_commit_but_its_record(
    finished: Workspace,
) -> None:
    said = finished.run("git", "status", "--porcelain", "--untracked-files=all").stdout.splitlines()
    assert sorted(said) == ["?? dvc.lock", "?? first-run.log", "?? reports/metrics.json"]  # the log is the fixture's
    for name in ("data/README.md", "reports/README.md"):
        assert (finished.folder / name).is_file()


def test_dvc_repro_after_the_flow_does_nothing_and_the_other_way_round(workspace: Workspace) -> None:
    said = workspace.repro().stdout
    assert said.count("Running stage") == 1
    assert "Running stage 'fingerprint'" in said
    # Every stage is run again; what was trained of the one range is there.
    workspace.change({"ranges": ["0-64"], "measure.speed": False})
    said = workspace.repro().stdout
    assert all(f"Running stage '{stage}'" in said for stage in STAGES)
    assert _launches(workspace) == [1, 1]
    said = workspace.flow()
    assert said.count(": cached, ") == len(STAGES) - 1
    assert _launches(workspace) == [1, 1]


def test_one_more_range_then_one_more_epoch_train_only_what_is_new(workspace: Workspace) -> None:
    def train() -> set[tuple[str, int]]:
        workspace.repro("train@1proc")
        log = workspace.folder / ".work/runs/1proc/steps.jsonl"
        events = [json.loads(line) for line in log.read_text().splitlines()]
        return {(event["range"], event["epoch"]) for event in events if event["event"] == "step"}

    receipt = workspace.folder / "data/runs/1proc/segments/0-64-epoch-1/receipt.json"
    before = receipt.read_bytes()
    workspace.change({"ranges": ["0-64", "64-128", "160-192"]})
    assert train() == {("160-192", 1)}
    assert workspace.launches("1proc") == 2
    assert receipt.read_bytes() == before
    workspace.change({"ranges": ["0-64"], "train.epochs": 2})
    assert train() == {("0-64", 2)}


def test_a_renamed_function_and_a_renamed_file_under_training_train_nothing_anew_and_another_version_does(
    workspace: Workspace,
) -> None:
    before, training = _digests(workspace), workspace.folder / "training"
    for file in [*training.rglob("*.py"), *(workspace.folder / "tasks").rglob("*.py")]:
        text = file.read_text()
        renamed = text.replace("compute_rate_in_segment", "tell_rate").replace(
            "step.schedule import", "step.rates import"
        )
        if renamed != text:
            file.write_text(renamed)
    (training / "step" / "schedule.py").rename(training / "step" / "rates.py")
    said = workspace.repro("measure", "train@1proc", "train@2proc").stdout
    assert "Running stage 'measure'" in said
    assert "speed: measured already" in said
    assert "Running stage 'train@2proc'" in said
    assert "2proc: 2 of 2 segments are finished already; nothing to train" in said
    assert _launches(workspace) == [1, 1]
    assert _digests(workspace) == before
    numerics = training / "numerics.py"
    numerics.write_text(numerics.read_text().replace("NUMERICS_VERSION = ", "NUMERICS_VERSION = 1"))
    workspace.change({"measure.speed": False})
    said = workspace.repro("train@1proc").stdout
    assert "(numerics 1 -> 11)" in said
    assert _launches(workspace) == [2, 1]


def _wait_for_steps(
    workspace: Workspace, cell: str, *, range_: str, steps: int, process: subprocess.Popen[bytes]
) -> None:
    """Wait until the cell has taken so many steps in the range."""
    log = workspace.folder / ".work" / "runs" / cell / "steps.jsonl"
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert process.poll() is None, "the flow ended before it could be killed"
        lines = log.read_text().splitlines() if log.exists() else []
        taken = [line for line in lines if '"event": "step"' in line and f'"range": "{range_}"' in line]
        if len(taken) >= steps:
            return
        time.sleep(0.02)
    pytest.fail(f"{cell} did not reach step {steps} of {range_}")


def test_a_killed_flow_leaves_no_process_and_goes_on_to_the_undisturbed_weights(
    cold_workspace: Workspace, warm: Path, tmp_path: Path
) -> None:
    disturbed = cold_workspace
    disturbed.change(
        {
            "ranges": ["0-64", "64-264"],
            "heldout": "264-280",
            "train.checkpoint_every_steps": 5,
            "measure.speed": False,
            "cells.1proc": None,
        }
    )
    for folder in (".work/runs", "data/runs"):
        shutil.rmtree(disturbed.folder / folder)
    # What comes before the training that is disturbed.
    Workspace(disturbed.folder, programs=warm).repro("measure")
    with (disturbed.folder / "flow.log").open("wb") as log:
        flow = subprocess.Popen(
            ["python", "-m", "flows"], cwd=disturbed.folder, env=disturbed.environment(), stdout=log, stderr=log
        )
        _wait_for_steps(disturbed, "2proc", range_="64-264", steps=12, process=flow)
        os.kill(flow.pid, signal.SIGKILL)
        flow.wait()
    # That nobody went on training is told by the step at which the next run resumes.
    deadline = time.monotonic() + 30
    while (left := processes_in(disturbed.folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []

    undisturbed = disturbed.copy(tmp_path / "undisturbed", programs=warm)
    subprocess.run(["rm", "-rf", undisturbed.folder / ".work" / "runs" / "2proc"], check=True)
    Workspace(disturbed.folder, programs=warm).repro("train@2proc")
    assert disturbed.launches("2proc") == 2
    log_lines = (disturbed.folder / ".work/runs/2proc/steps.jsonl").read_text().splitlines()
    resumed = [json.loads(line) for line in log_lines if "segment_started" in line or "segment_reused" in line]
    assert [event["event"] for event in resumed] == ["segment_reused", "segment_started"]
    assert resumed[1]["resumed_at_step"] >= 5

    undisturbed.repro("train@2proc")
    segment = "64-264-epoch-1"
    assert _weights(disturbed.checkpoint("2proc", segment)) == _weights(undisturbed.checkpoint("2proc", segment))
