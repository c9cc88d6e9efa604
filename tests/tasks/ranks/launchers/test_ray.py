"""Ranks on two raylets of one machine: the weights of torchrun's, and what is left when something is killed."""

import importlib.metadata
import signal
import subprocess
import sys

import psutil
import pytest

from tasks.process.failure import ConfigurationError
from tasks.ranks.cluster import connection
from tests.chaos.ray_kills import SECONDS, RayTraining, kill_in_turn
from tests.extras import skip_without
from tests.flows.toy_project import wait_for
from tests.processes import left_of, new_mark
from tests.ray_cluster import Cluster, find_own_address, two_raylets

skip_without("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def training(tmp_path_factory, warm):
    """On two raylets; its ranks start at once, each with a process in its place that is ended as it would be itself."""
    folder, here, python = tmp_path_factory.mktemp("cluster"), find_own_address(), str(warm / "python")
    starts = (subprocess.Popen, subprocess.Popen)
    with two_raylets(folder, addresses=(here, here), starts=starts, python=python) as cluster:
        yield RayTraining(folder, cluster, python=python)


def test_whatever_is_killed_nothing_is_left_and_the_last_of_many_runs_has_the_weights_of_torchrun(training):
    assert kill_in_turn(training) == []


def test_a_cluster_without_a_token_is_refused(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "ray", raising=False)  # which other tests leave joined to a cluster
    monkeypatch.setattr(connection, "_TOKEN", tmp_path / "auth_token")
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=r"^ray\.address=there:6379: no token; allowed: the cluster's in "):
        connection.connect("there:6379")


def test_a_machine_with_another_version_of_what_computes_the_updates_is_refused_in_one_line(tmp_path, warm):
    skip_without("deepspeed")
    (told := tmp_path / "other" / "deepspeed-0.1.dist-info").mkdir(parents=True)
    (told / "METADATA").write_text("Name: deepspeed\nVersion: 0.1\n")

    def start_other(command, *, env, **more):
        return subprocess.Popen(command, env={**env, "PYTHONPATH": str(told.parent)}, **more)

    here, python = find_own_address(), str(warm / "python")
    with two_raylets(
        tmp_path, addresses=(here, here), starts=(subprocess.Popen, start_other), python=python
    ) as cluster:
        training = RayTraining(tmp_path, cluster, python=python, strategy="deepspeed", exact=False)
        process = training.start("work")
        out, _ = process.communicate()
    assert process.returncode == 2, out[-4000:]
    versions = f"deepspeed 0.1, here {importlib.metadata.version('deepspeed')}"
    assert f"other versions than here: {versions}; install requirements.lock on all machines, and " in out


def test_a_cluster_of_its_own_listens_on_loopback_alone_saves_when_asked_and_ends_with_the_run(tmp_path, warm):
    mark, nothing = new_mark(), (subprocess.Popen,) * 2
    not_started = Cluster(tmp_path, addresses=("127.0.0.1",) * 2, starts=nothing, python=sys.executable)
    training = RayTraining(tmp_path, not_started, python=str(warm / "python"))
    process = training.begin("own", "ray", "local", "1", **mark)
    listening = {
        (one.name(), part.laddr.ip.removeprefix("::ffff:"))
        for one in map(psutil.Process, left_of(mark)) for part in one.net_connections("tcp")
        if part.status == psutil.CONN_LISTEN
    }  # fmt: skip
    assert {"raylet", "gcs_server"} <= {name for name, _ in listening}
    assert {address for _, address in listening} == {"127.0.0.1"}, listening
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 75, out[-4000:]
    wait_for(lambda: left_of(mark) == {}, seconds=SECONDS, what="nothing is left of the cluster")
