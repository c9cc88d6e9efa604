"""Ranks on two raylets of one machine: the weights of torchrun's, and what is left when something is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.flows.toy_project import wait_for
from tests.processes import left_of, new_mark
from tests.ray_cluster import Cluster, find_own_address, needs_ray, two_raylets
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import events_in

pytestmark = [pytest.mark.slow, needs_ray]

_SECONDS = 180.0
_EVERY = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    here = find_own_address()
    folder = tmp_path_factory.mktemp("cluster")
    with two_raylets(folder, addresses=(here, here), starts=(subprocess.Popen, subprocess.Popen)) as cluster:
        yield cluster


class Training:
    """60 steps in exact mode, with a checkpoint after every fifth."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self._folder, self._cluster = folder, cluster
        model, rows = make_tiny_model(folder / "model"), make_slice(folder / "0-480", num_rows=480)
        self._told = (model, [rows])

    def start(self, name: str, *where: str, **more: str) -> "subprocess.Popen[str]":
        """Start a stage's part of it in the work folder `name`."""
        told = {"world_size": 2, "strategy": "ddp", "cell": "many"}
        config = make_config(
            self._folder / name, *self._told, exact=True, checkpoint_every_steps=_EVERY, **told
        )  # fmt: skip
        (self._folder / f"{name}.json").write_text(json.dumps(config))
        command = [sys.executable, "-m", "tests.tasks.ranks.launchers.driver", str(self._folder / f"{name}.json")]
        environment = {**os.environ, **self._cluster.environment, **self._cluster.mark, **more}
        return subprocess.Popen(
            [*command, *where], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, name: str, *where: str) -> None:
        """Run it to its end."""
        process = self.start(name, *where)
        out, _ = process.communicate(timeout=_SECONDS)
        assert process.returncode == 0, out[-4000:]

    def begin(self, name: str, *where: str, **more: str) -> "subprocess.Popen[str]":
        """Start it, on both raylets if nothing else is said; return once it has saved what it can go on from later."""
        stream = self._folder / name / "steps.jsonl"
        stream.unlink(missing_ok=True)
        process = self.start(name, *(where or ("ray", self._cluster.address, "2")), **more)
        wait_for(
            lambda: process.poll() is not None or sum(one["event"] == "step" for one in events_in(stream)) > _EVERY,
            seconds=_SECONDS, what="a checkpoint is saved",
        )  # fmt: skip
        assert process.poll() is None, process.communicate()[0][-4000:]
        return process

    def resumed_at(self, name: str) -> int:
        """Return the step after which the last launch went on."""
        (began,) = [one for one in events_in(self._folder / name / "steps.jsonl") if one["event"] == "segment_started"]
        return int(began["resumed_at_step"])

    def checksums(self, name: str) -> set[str]:
        """Return the checksums with which the training ended."""
        (file,) = (self._folder / name / "segments").glob("*/segment.json")
        return set(json.loads(file.read_bytes())["parameter_checksums"])


@pytest.fixture(scope="module")
def training(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Training:
    made = Training(tmp_path_factory.mktemp("training"), cluster)
    made.run("torchrun", "torchrun")
    return made


_KILLED = {
    "ray::NodeRanks": "node 1 ({host}) is lost: ",
    "-m training": "rank 1 was ended by signal 9",
    "raylet/raylet": "node 1 ({host}) is lost: ",
    "launchers.driver": "",
    "gcs_server": "the head of the Ray cluster at {address} is lost: ",
}
"""What is killed, the newest process with these words -> what is said of it."""


def test_whatever_is_killed_nothing_is_left_and_the_last_of_many_runs_has_the_weights_of_torchrun(
    cluster: Cluster, training: Training
) -> None:
    step = 0
    for killed, says in _KILLED.items():
        process = training.begin("many")
        assert training.resumed_at("many") >= step
        step = training.resumed_at("many") + _EVERY
        victims = cluster.find(killed)
        os.kill(victims[-1], signal.SIGKILL)
        out, _ = process.communicate(timeout=_SECONDS)
        assert process.returncode == (6 if says else -9), out[-4000:]
        assert says.format(host=os.uname().nodename, address=cluster.address) in out, out[-4000:]
        wait_for(
            lambda: not cluster.find("-m training") and not cluster.find("ray::NodeRanks"),
            seconds=_SECONDS, what=f"no rank is left after the end of {killed}",
        )  # fmt: skip
        if killed == "raylet/raylet":
            cluster.stop(1)
            cluster.start(1)
    cluster.stop(1)
    cluster.stop(0)
    cluster.start(0)
    # On fewer machines: one has all ranks.
    training.run("many", "ray", cluster.address, "1")
    assert training.resumed_at("many") >= step
    assert training.checksums("many") == training.checksums("torchrun")
    cluster.start(1)


def test_a_cluster_without_a_token_is_refused(cluster: Cluster, training: Training, tmp_path: Path) -> None:
    process = training.start("refused", "ray", cluster.address, "2", RAY_AUTH_TOKEN_PATH="", HOME=str(tmp_path))
    out, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 2
    assert out.splitlines()[-1].startswith(
        f"driver: ray.address={cluster.address}: no token; allowed: the cluster's in "
    )


def test_a_cluster_of_its_own_listens_on_loopback_alone_saves_when_asked_and_ends_with_the_run(
    training: Training,
) -> None:
    mark = new_mark()
    process = training.begin("own", "ray", "local", "1", **mark)
    listening = [
        (part.laddr.ip.removeprefix("::ffff:"), " ".join(one.cmdline()))
        for one in map(psutil.Process, left_of(mark)) for part in one.net_connections("tcp")
        if part.status == psutil.CONN_LISTEN
    ]  # fmt: skip
    assert any("raylet" in owner for _, owner in listening)
    assert any("gcs_server" in owner for _, owner in listening)
    assert {address for address, _ in listening} == {"127.0.0.1"}, listening
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 75, out[-4000:]
    wait_for(lambda: left_of(mark) == {}, seconds=_SECONDS, what="nothing is left of the cluster")
