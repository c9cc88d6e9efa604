"""A cell on two hosts, with real stages: certified, measured over a fast and a slow link, trained, lost and resumed."""

import json
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.records.measurement import Measurement, MeasurementFile
from tasks.records.run import RunFile, read_segment
from tests.flows.toy_project import wait_for
from tests.integration.hosts import TwoHosts, two_hosts
from tests.processes import left_of, new_mark, none_left_of
from tests.tiny import make_tiny_model
from tests.training.conftest import events_in
from tests.warm.environment import warm_environment
from tests.workspace import SMALL, Workspace

pytestmark = pytest.mark.slow

_PORT = 29400
_SECONDS_OF_A_STAGE = 600
_WATCHDOG_SECONDS = 16.0
"""Ranks of a busy machine are heard within half of it."""
_CHANGES = SMALL | {
    "ranges": ["0-96"],
    "heldout": "128-160",
    "train.checkpoint_every_steps": 4,
    "train.watchdog_seconds": _WATCHDOG_SECONDS,
    "measure.twin_seconds": 0,
    "cells": {
        "1node": {"strategy": "single", "world_size": 1},
        "2nodes": {"strategy": "ddp", "world_size": 2, "num_nodes": 2},
    },
    "nodes": {"rendezvous": f"10.77.0.1:{_PORT}"},
}
"""12 steps with checkpoints after 4 and 8."""


@dataclass
class Cluster:
    """Two hosts, each with a copy of the project; the second one waits for work."""

    hosts: TwoHosts
    head: Workspace
    node: Workspace
    key: str
    mark: dict[str, str]

    def stage(self, name: str, *, ok: bool = True, **environment: str) -> str:
        """Run a stage on the head as it stands in dvc.yaml; return what it wrote."""
        process = self.start(name, **environment)
        try:
            out, _ = process.communicate(timeout=_SECONDS_OF_A_STAGE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{name} did not end: {process.communicate()[0][-6000:]}") from None
        assert not ok or process.returncode == 0, out[-6000:]
        return f"{out}\nexit code {process.returncode}\n"

    def start(self, name: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a stage on the head."""
        stages = YAML(typ="safe", pure=True).load(self.head.folder / "dvc.yaml")["stages"]
        name, _, cell = name.partition("@")
        command = shlex.split(str(stages[name].get("do", stages[name])["cmd"]).replace("${key}", cell))
        return self.hosts.alpha.popen(
            command, cwd=self.head.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self.head.environment(DDP_COMPARE_NODES_SECRET=self.key, **self.mark, **environment),
        )  # fmt: skip

    def join(self) -> "subprocess.Popen[str]":
        """Start the node, by the command that a head prints."""
        command = ["python", "-m", "tasks.ranks.launchers.nodes.join", f"10.77.0.1:{_PORT}"]
        with (self.node.folder / "join.log").open("ab") as log:
            return self.hosts.beta.popen(
                command, cwd=self.node.folder, stdout=log, stderr=log,
                env=self.node.environment(DDP_COMPARE_NODES_SECRET=self.key, **self.mark),
            )  # fmt: skip

    def run_facts(self) -> dict[str, Any]:
        """Return run.json of the cell on two nodes."""
        facts: dict[str, Any] = json.loads((self.head.folder / "data/runs/2nodes/run.json").read_bytes())
        return facts

    def checksums(self) -> list[list[str]]:
        """Return the checksums with which its segments ended, rank by rank."""
        run = self.head.folder / "data/runs/2nodes"
        return [read_segment(run / part.folder).parameter_checksums for part in RunFile.read(run).segments]

    def forget_training(self) -> None:
        """Remove what was trained."""
        for folder in (".work/runs/2nodes", "data/runs/2nodes"):
            shutil.rmtree(self.head.folder / folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[Cluster]:
    folder, mark = tmp_path_factory.mktemp("nodes"), new_mark()
    with (
        two_hosts() as hosts, none_left_of(mark),
        warm_environment(start=hosts.alpha.popen) as on_alpha, warm_environment(start=hosts.beta.popen) as on_beta,
    ):  # fmt: skip
        changes = {"nodes": {}} | _CHANGES
        head = Workspace.create(folder / "head", project=project, changes=changes, programs=on_alpha)
        cluster = Cluster(hosts, head, head, "a key of this test", mark)
        for stage in ("fingerprint", "download", "slice"):
            cluster.stage(stage)
        # Smaller than the built-in one: 2.2 MB of gradient cross the link, 0.02 s at 1 Gbit/s, 0.2 s at 100 Mbit/s.
        vocab_size = json.loads((head.folder / "data/base_model/config.json").read_bytes())["vocab_size"]
        make_tiny_model(head.folder / "data/base_model", vocab_size=vocab_size, hidden_size=128)
        cluster.node = head.copy(folder / "elsewhere", programs=on_beta)
        joined = cluster.join()
        yield cluster
        joined.send_signal(signal.SIGTERM)
        assert joined.wait(timeout=90) == 75
        wait_for(lambda: left_of(mark) == {}, seconds=60, what="nothing is left on either host")


@pytest.fixture(scope="module")
def measured(cluster: Cluster) -> dict[str, Measurement]:
    """What was measured over a link of 1 Gbit/s and one of 100 Mbit/s."""
    found = {}
    for rate in ("1gbit", "100mbit"):
        cluster.hosts.shape(rate)
        cluster.stage("fingerprint", DDP_COMPARE_TRIAL=rate)
        cluster.stage("measure")
        speed = cluster.head.folder / "data/measurements/speed.json"
        found[rate] = MeasurementFile.model_validate(json.loads(speed.read_bytes()))
    cluster.hosts.shape("1gbit")
    return found


def test_ranks_on_two_nodes_make_the_update_of_one_process(cluster: Cluster, measured: dict[str, Measurement]) -> None:
    (certificate,) = json.loads((cluster.head.folder / "data/measurements/certificate.json").read_bytes())["cells"]
    assert (certificate["cell"], certificate["verdict"]) == ("2nodes", "passed"), certificate
    assert certificate["gradient"]["relative_l2"] <= certificate["tolerance"]["gradient"]
    assert len(measured) == 2


def test_a_tenth_of_the_link_shows_in_speedup_waterfall_and_prediction(measured: dict[str, Measurement]) -> None:
    fast, slow = measured["1gbit"], measured["100mbit"]

    def exposed(measurement: Measurement) -> float:
        (fall,) = measurement.waterfalls
        return next(part.seconds.value for part in fall.parts if part.name == "exposed communication")

    def predicted(measurement: Measurement) -> dict[int, float]:
        """Return number of ranks -> what the model says, of measured ones by itself."""
        assert measurement.prediction is not None, measurement.left_out
        points = measurement.prediction.curves[0].points
        return {point.world_size: found.value for point in points if (found := point.speedup or point.model)}

    speedups = [next(arm.speedup for arm in one.arms if arm.cell == "2nodes") for one in (fast, slow)]
    assert speedups[0] is not None
    assert speedups[1] is not None
    assert speedups[1].value < 0.8 * speedups[0].value
    assert exposed(slow) > exposed(fast) + 0.05
    on_slow, on_fast = predicted(slow), predicted(fast)
    assert on_slow[2] < on_fast[2]
    # More ranks are withheld where the model does not describe the two.
    for size in on_slow.keys() & on_fast.keys():
        assert on_slow[size] < on_fast[size]


@pytest.fixture(scope="module")
def trained(cluster: Cluster) -> dict[str, Any]:
    """run.json of a training that nothing disturbed, with the `checksums` of its segments."""
    cluster.stage("train@2nodes")
    return cluster.run_facts() | {"checksums": cluster.checksums()}


def test_each_node_leaves_facts_and_logs_with_the_head(cluster: Cluster, trained: dict[str, Any]) -> None:
    nodes = trained["nodes"]
    assert [(node["node_rank"], node["host"], node["address"], node["interface"]) for node in nodes] == [
        (0, "alpha", "10.77.0.1", "cable"),
        (1, "beta", "10.77.0.2", "cable"),
    ]
    assert {node["num_ranks"] for node in nodes} == {1}
    (launch,) = (cluster.head.folder / ".work/runs/2nodes/logs").iterdir()
    for node_rank in (0, 1):
        assert (launch / f"node-{node_rank}" / "torchrun.log").is_file()
        assert len(list((launch / f"node-{node_rank}").glob("*/attempt_0/0/stderr.log"))) == 1


def test_a_lost_node_ends_all_within_the_watchdog_and_the_next_run_ends_with_the_same_weights(
    cluster: Cluster, trained: dict[str, Any]
) -> None:
    cluster.forget_training()
    # Half a second for a step, so that the cable is cut in the middle, however late somebody looks.
    cluster.hosts.shape("50mbit")
    steps = cluster.head.folder / ".work/runs/2nodes/steps.jsonl"
    training = cluster.start("train@2nodes")
    wait_for(
        lambda: any(event.get("step", 0) >= 6 for event in events_in(steps)), seconds=240, what="a checkpoint is saved"
    )
    cluster.hosts.cut()
    cut_at = time.monotonic()
    out, _ = training.communicate(timeout=180)
    assert training.returncode == 6, out
    # Nobody else ends it; the rest is what ending takes on a busy machine.
    assert time.monotonic() - cut_at < _WATCHDOG_SECONDS + 60
    assert out.splitlines()[-1] == (
        f"train: cell 2nodes: node 1 (beta) is lost: nothing from it for {_WATCHDOG_SECONDS / 2:.0f} s; all ranks were "
        "ended; run again, it goes on from the last checkpoint"
    )
    wait_for(lambda: not _ranks(cluster), seconds=_WATCHDOG_SECONDS + 60, what="no rank is left on either host")
    cluster.hosts.shape("1gbit")
    cluster.stage("train@2nodes")
    (began,) = [event for event in events_in(steps) if event["event"] == "segment_started"]
    assert began["resumed_at_step"] >= 4
    assert cluster.checksums() == trained["checksums"]


def test_a_node_with_other_data_is_refused_before_any_rank_starts(cluster: Cluster, trained: dict[str, Any]) -> None:
    assert trained
    cluster.forget_training()
    tokens = cluster.node.folder / "data/slices/0-96/tokens.npy"
    content = tokens.read_bytes()
    tokens.unlink()  # a hard link
    tokens.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    out = cluster.stage("train@2nodes", ok=False)
    tokens.write_bytes(content)
    assert "exit code 3" in out
    assert "node 1 (beta): data/slices/0-96/tokens.npy is not the head's: sha256 " in out
    assert not list((cluster.head.folder / ".work/runs/2nodes/logs").glob("*/node-*"))


def _ranks(cluster: Cluster) -> list[str]:
    return [command for command in left_of(cluster.mark).values() if "-m training" in command]
