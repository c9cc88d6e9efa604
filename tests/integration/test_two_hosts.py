"""A cell on two hosts, with real stages: measured over a fast and a slow link, trained, lost and resumed."""

import contextlib
import json
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from functools import partial

import pytest
from ruamel.yaml import YAML

from tasks.records.run import RunFile, read_segment
from tests.extras import skip_without
from tests.flows.toy_project import wait_for
from tests.integration.hosts import TwoHosts, two_hosts
from tests.ray_cluster import Cluster, two_raylets
from tests.tiny import make_tiny_model
from tests.training.conftest import events_in
from tests.warm.environment import warm_environment
from tests.workspace import SMALL, Workspace

skip_without("ray")
pytestmark = pytest.mark.slow

_WATCHDOG_SECONDS = 24.0
"""Ranks of a busy machine are heard within half of it."""
_OWN = YAML(typ="safe", pure=True).load(f"""
ranges: [0-96]
train.checkpoint_every_steps: 4
train.watchdog_seconds: {_WATCHDOG_SECONDS}
measure.waterfall_seconds: 1
cells:
  1node: {{strategy: single, world_size: 1}}
  2nodes: {{strategy: ddp, world_size: 2, launcher: ray, num_nodes: 2}}
""")
"""12 steps with checkpoints after 4 and 8."""


@dataclass
class Laboratory:
    """Two hosts in one cluster; the first has the project, of which the second sees nothing."""

    hosts: TwoHosts
    cluster: Cluster
    head: Workspace

    def stage(self, name):
        """Run a stage on the first host as it stands in dvc.yaml."""
        process = self.start(name)
        out, _ = process.communicate(timeout=600)
        assert process.returncode == 0, out[-6000:]

    def start(self, name):
        """Start a stage on the first host."""
        stages = YAML(typ="safe", pure=True).load(self.head.folder / "dvc.yaml")["stages"]
        name, _, cell = name.partition("@")
        command = shlex.split(str(stages[name].get("do", stages[name])["cmd"]).replace("${key}", cell))
        return self.hosts.alpha.popen(
            command, cwd=self.head.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self.head.environment(**self.cluster.environment, **self.cluster.mark),
        )  # fmt: skip

    def checksums(self):
        """Return the checksums with which its segments ended, rank by rank."""
        run = self.head.folder / "data/runs/2nodes"
        return [read_segment(run / part.folder).parameter_checksums for part in RunFile.read(run).segments]


def _start_blind(host, hidden, cache, command, **options):
    """Start a command on the host where nothing is to be seen of a folder."""
    blind = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden), *command]
    return host.popen(blind, **options | {"env": options["env"] | {"XDG_CACHE_HOME": str(cache)}})


@pytest.fixture
def lab(tmp_path_factory, project):
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "project").mkdir()
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(two_hosts())
        blind = partial(_start_blind, hosts.beta, folder / "project", folder / "cache")
        on_alpha, on_beta = (stack.enter_context(warm_environment(start=one)) for one in (hosts.alpha.popen, blind))

        def start_on_beta(command, **options):
            return blind([str(on_beta / "python"), *command[1:]], **options)

        addresses = (hosts.alpha.address, hosts.beta.address)
        with two_raylets(folder, addresses=addresses, starts=(hosts.alpha.popen, start_on_beta)) as cluster:
            changes = {"ray": {"address": cluster.address}} | SMALL | _OWN
            head = Workspace.create(folder / "project" / "head", project=project, changes=changes, programs=on_alpha)
            lab = Laboratory(hosts, cluster, head)
            for stage in ("fingerprint", "download", "slice"):
                lab.stage(stage)
            # Smaller than the built-in one: 2.2 MB of gradient cross the link, 0.02 s at 1 Gbit/s, 0.2 s at 100 Mbit/s.
            vocab_size = json.loads((head.folder / "data/base_model/config.json").read_bytes())["vocab_size"]
            make_tiny_model(head.folder / "data/base_model", vocab_size=vocab_size, hidden_size=128)
            yield lab


def test_a_lost_node_ends_all_within_the_watchdog_and_the_next_run_ends_with_the_same_weights(lab):
    lab.stage("train@2nodes")
    facts, checksums = json.loads((lab.head.folder / "data/runs/2nodes/run.json").read_bytes()), lab.checksums()
    assert [(node["node_rank"], node["host"], node["address"], node["interface"]) for node in facts["nodes"]] == [
        (0, "alpha", "10.77.0.1", "cable"),
        (1, "beta", "10.77.0.2", "cable"),
    ]
    assert {node["num_ranks"] for node in facts["nodes"]} == {1}
    files = list(lab.head.folder.glob("data/runs/2nodes/segments/*/segment.json"))
    assert len(files) == len(facts["segments"])
    checked = [one for file in files for one in json.loads(file.read_bytes())["checked_updates"]]
    assert {(one["verdict"], one["problem"]) for one in checked} == {("passed", None)}
    (launch,) = (lab.head.folder / ".work/runs/2nodes/logs").iterdir()
    for rank in (0, 1):
        assert (launch / f"node-{rank}" / str(rank) / "stderr.log").is_file()

    for name in (".work/runs/2nodes", "data/runs/2nodes"):
        shutil.rmtree(lab.head.folder / name)
    # Half a second for a step, so that the cable is cut in the middle, however late somebody looks.
    lab.hosts.shape("50mbit")
    steps = lab.head.folder / ".work/runs/2nodes/steps.jsonl"
    training = lab.start("train@2nodes")
    wait_for(
        lambda: any(event.get("step", 0) >= 6 for event in events_in(steps)), seconds=240, what="a checkpoint is saved"
    )
    lab.hosts.cut()
    cut_at = time.monotonic()
    out, _ = training.communicate(timeout=180)
    assert training.returncode == 6, out
    # Nobody else ends it; the rest is what ending takes on a busy machine.
    assert time.monotonic() - cut_at < _WATCHDOG_SECONDS + 60
    # Whoever notices first: Ray, or we who hear nothing.
    assert "train: cell 2nodes: node 1 (beta) is lost: " in out
    assert "; all ranks were ended; run again, it goes on from the last checkpoint" in out
    wait_for(
        lambda: not lab.cluster.find("-m training") and not lab.cluster.find("ray::NodeRanks"),
        seconds=_WATCHDOG_SECONDS + 60, what="no rank is left on either host",
    )  # fmt: skip
    lab.hosts.shape("1gbit")
    # Ray takes a machine for lost that it did not hear for a while, and its raylet ends.
    lab.cluster.stop(1)
    lab.cluster.start(1)
    lab.stage("train@2nodes")
    (began,) = [event for event in events_in(steps) if event["event"] == "segment_started"]
    assert began["resumed_at_step"] >= 4
    assert lab.checksums() == checksums
