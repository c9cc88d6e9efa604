"""Cells that Ray starts, by the stages of a comparison: torchrun's weights, and one training over many sessions."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.records.run import RunFile
from tests.flows.toy_project import wait_for
from tests.processes import left_of, new_mark, none_left_of
from tests.ray_cluster import Cluster, find_own_address, needs_ray, two_raylets
from tests.tracker_stores import STORES
from tests.training.conftest import events_in
from tests.workspace import Workspace
from training.process.files import digest_file

pytestmark = [pytest.mark.slow, needs_ray]

_SECONDS = 300
_NUM_SESSIONS, _NUM_STEPS = 2, 6 * 16


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory, warm: Path) -> Iterator[Cluster]:
    folder, here, starts = tmp_path_factory.mktemp("cluster"), find_own_address(), (subprocess.Popen, subprocess.Popen)
    with two_raylets(folder, addresses=(here, here), starts=starts, python=str(warm / "python")) as cluster:
        yield cluster


def _digest_weights(workspace: Workspace, cell: str) -> dict[str, str]:
    """Return segment -> digest of its semantic checkpoint."""
    segments = [folder.name for folder in (workspace.folder / "data/runs" / cell / "segments").iterdir()]
    return {segment: digest_file(workspace.checkpoint(cell, segment)) for segment in segments}


def test_in_exact_mode_ray_on_two_raylets_torchrun_and_one_process_leave_the_same_weights_to_the_bit(
    workspace: Workspace, raylets: Cluster
) -> None:
    spread = {"strategy": "ddp", "world_size": 2}
    cells = {
        "1proc": {"strategy": "single", "world_size": 1},
        "torchrun": {**spread, "launcher": "torchrun"},
        "ray": {**spread, "launcher": "ray", "num_nodes": 2},
    }
    workspace.change({"ray": {"address": raylets.address}, "train.exact": True, "cells": cells})
    workspace.repro(*(f"train@{cell}" for cell in cells), **raylets.environment)
    run = RunFile.read(workspace.folder / "data/runs/ray")
    assert (run.launcher, [node.num_ranks for node in run.nodes]) == ("ray", [1, 1])
    found = {cell: _digest_weights(workspace, cell) for cell in cells}
    assert len(set(found["ray"].values())) == 2
    assert found["ray"] == found["torchrun"]
    assert found["ray"] == found["1proc"]


def test_shards_killed_in_every_session_end_with_one_count_of_steps_in_the_tracker_and_the_weights_of_no_kill(
    workspace: Workspace, raylets: Cluster
) -> None:
    spread = {"strategy": "fsdp2", "world_size": 2}
    cells = {"undisturbed": spread, "2gpu": {**spread, "launcher": "ray", "num_nodes": 2}}
    workspace.change({"ray": {"address": raylets.address}, "train.epochs": 6, "train.checkpoint_every_steps": 3})
    workspace.change({"cells": cells})
    workspace.repro("train@undisturbed")
    began = [_train_and_kill(workspace, raylets) for _ in range(_NUM_SESSIONS)]
    assert began == sorted(set(began))
    workspace.repro("train@2gpu", **raylets.environment)
    values = STORES["mlflow"].read_values(workspace.folder)
    assert [step for step, _ in values["2gpu"]["loss"]] == list(range(1, _NUM_STEPS + 1))
    assert values["2gpu"]["loss"] == values["undisturbed"]["loss"]
    assert _digest_weights(workspace, "2gpu") == _digest_weights(workspace, "undisturbed")


def _train_and_kill(workspace: Workspace, raylets: Cluster) -> tuple[int, int]:
    """Kill the stage after a few steps, see that nobody is left; return at which segment and step it had begun."""
    stream, mark = workspace.folder / ".work/runs/2gpu/steps.jsonl", new_mark()
    stream.unlink(missing_ok=True)
    with none_left_of(mark):
        process = subprocess.Popen(
            ["dvc", "repro", "train@2gpu"], cwd=workspace.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=workspace.environment(**raylets.environment, **mark),
        )  # fmt: skip
        wait_for(
            lambda: process.poll() is not None or sum(one["event"] == "step" for one in events_in(stream)) > 8,
            seconds=_SECONDS, what="a checkpoint is saved",
        )  # fmt: skip
        assert process.poll() is None, "it ended before it could be killed"
        for pid, command in left_of(mark).items():
            if "tasks.train" in command:
                os.kill(pid, signal.SIGKILL)
        process.wait()
        wait_for(
            lambda: left_of(mark) == {} and not raylets.find("-m training"),
            seconds=_SECONDS, what="nobody is left of the session",
        )  # fmt: skip
    events = events_in(stream)
    began = next(one for one in events if one["event"] == "segment_started")
    return sum(one["event"] == "segment_reused" for one in events), int(began["resumed_at_step"])
