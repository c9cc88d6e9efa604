"""A training on two raylets of this machine that loses actors, ranks, raylets, stages and the head."""

import json
import os
import signal
import subprocess

from tests.flows.toy_project import wait_for
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import events_in

SECONDS = 180.0
_EVERY, _NUM_STEPS = 5, 600
_LEFT = ("-m training", "ray::NodeRanks", "process.rank_stage")
KILLED = {
    "ray::NodeRanks": ") is lost: ",
    "-m training": " was ended by signal 9",
    "raylet/raylet": ") is lost: ",
    "process.rank_stage": "",
    "gcs_server": "the head of the Ray cluster at {address} is lost: ",
}
"""What is killed: one process with these words, the newest or any -> what is said of it."""


class RayTraining:
    """A training in exact mode, with a checkpoint after every fifth step, and the weights that torchrun's has."""

    def __init__(self, folder, cluster, *, python, **changes):
        """`python`: of the stage, of torchrun and of ranks on the first machine; `changes`: of the config."""
        self._folder, self.cluster, self._python = folder, cluster, python
        rows = make_slice(folder / "rows", num_rows=8 * _NUM_STEPS)
        self._inputs, self._changes = (make_tiny_model(folder / "model"), [rows]), changes

    def start(self, name, *where, **more):
        """Start a stage's part of it in the work folder `name`; on both raylets if nothing else is said."""
        asked = {"exact": True, "strategy": "ddp", "world_size": 2, "cell": "many", **self._changes}
        config = make_config(self._folder / name, *self._inputs, checkpoint_every_steps=_EVERY, **asked)
        (self._folder / f"{name}.json").write_text(json.dumps(config))
        (self._folder / name / "steps.jsonl").unlink(missing_ok=True)
        command = [self._python, "-m", "tests.tasks.process.rank_stage", str(self._folder / f"{name}.json")]
        environment = {**os.environ, **self.cluster.environment, **self.cluster.mark, **more}
        return subprocess.Popen(
            [*command, *(where or ("ray", self.cluster.address, "2"))], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, name, *where):
        """Run it to its end."""
        process = self.start(name, *where)
        out, _ = process.communicate(timeout=2 * SECONDS)
        assert process.returncode == 0, out[-4000:]

    def begin(self, name, *where, **more):
        """Start it; return once it has saved what it can go on from later."""
        process = self.start(name, *where, **more)
        wait_for(
            lambda: process.poll() is not None or len(self._events(name, "step")) > _EVERY,
            seconds=SECONDS, what="a checkpoint is saved",
        )  # fmt: skip
        assert process.poll() is None, process.communicate()[0][-4000:]
        return process

    def resumed_at(self, name):
        """Return the step after which the last launch went on; None if it has not come so far."""
        began = self._events(name, "segment_started")
        return int(began[0]["resumed_at_step"]) if began else None

    def saved_at(self, name):
        """Return a step that the last launch, which has made some, has saved for sure."""
        return self.resumed_at(name) + _EVERY * ((len(self._events(name, "step")) - 1) // _EVERY)

    def find_difference(self, name):
        """Return what differs from torchrun's at the end: weights, or what ranks of any launch were told by names."""
        if not (self._folder / "torchrun").exists():
            self.run("torchrun", "torchrun")
        found, wanted = self._read_facts(name), self._read_facts("torchrun")
        problems = []
        if set(found["parameter_checksums"]) != set(wanted["parameter_checksums"]):
            problems.append("other weights than torchrun's")
        told, wanted_told = ([one["environment"] for one in facts["settings"]] for facts in (found, wanted))
        if any(one != wanted_told[0] for one in told):
            problems.append(f"ranks were told {told}, torchrun's {wanted_told}")
        return "; ".join(problems)

    def _read_facts(self, name):
        (file,) = (self._folder / name / "segments").glob("*/segment.json")
        return json.loads(file.read_bytes())

    def _events(self, name, kind):
        return [one for one in events_in(self._folder / name / "steps.jsonl") if one["event"] == kind]


def kill_in_turn(training):
    """Kill in turn what KILLED names, the newest process, then go on; in the end on one machine.

    Return what was wrong: with who is left, with what is said, with where the next run goes on and with the weights.
    """
    cluster, saved, found = training.cluster, 0, []
    for killed, says in KILLED.items():
        for machine in (0, 1):
            cluster.start(machine)
        process = training.begin("many")
        found.append(_find_lost(training, saved))
        saved = max(saved, training.saved_at("many"))
        os.kill(cluster.find(killed)[-1], signal.SIGKILL)
        try:
            out, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out = f"not ended within {SECONDS:.0f} s: {process.communicate()[0]}"
        wait_for(lambda: not any(map(cluster.find, _LEFT)), seconds=SECONDS, what="no rank is left")
        if says:
            is_right = process.returncode == 6 and says.format(address=cluster.address) in out and "(raylet)" not in out
        else:
            is_right = process.returncode == -signal.SIGKILL
        found.append("" if is_right else f"{killed}: exit code {process.returncode}, it said: {out[-1500:]}")
        if killed == "gcs_server":
            cluster.stop(0)
        if killed in ("gcs_server", "raylet/raylet"):
            cluster.stop(1)
    cluster.stop(1)
    cluster.start(0)
    training.run("many", "ray", cluster.address, "1")
    found += [_find_lost(training, saved), training.find_difference("many")]
    return [problem for problem in found if problem]


def _find_lost(training, saved):
    stood_at = training.resumed_at("many")
    return "" if stood_at is None or stood_at >= saved else f"went on at step {stood_at}, saved were {saved}"
