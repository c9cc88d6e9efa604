"""The stage `train` itself, as DVC runs it: a second one is refused, and how it ends when it is asked to."""

import shlex
import signal
import subprocess

import pytest
from ruamel.yaml import YAML

from tests.flows.toy_project import wait_for
from tests.processes import left_of, new_mark, none_left_of
from tests.training.conftest import events_in
from tests.workspace import Workspace

pytestmark = pytest.mark.slow


def test_a_second_training_is_refused_and_the_first_saves_and_exits_with_75(cold_workspace, warm):
    untrained, beside = cold_workspace, Workspace(cold_workspace.folder, programs=warm)
    untrained.change({"train.epochs": 150, "train.learning_rate": 1e-3})
    beside.repro("fingerprint")
    mark = new_mark()
    stages = YAML(typ="safe", pure=True).load(untrained.folder / "dvc.yaml")["stages"]
    command = shlex.split(str(stages["train"]["do"]["cmd"]).replace("${key}", "2proc"))
    steps = untrained.folder / ".work" / "runs" / "2proc" / "steps.jsonl"
    steps.unlink()
    with none_left_of(mark):
        first = subprocess.Popen(
            command, cwd=untrained.folder, env=untrained.environment(**mark), stdout=-1, stderr=-2, text=True
        )
        wait_for(lambda: any(event["event"] == "step" for event in events_in(steps)), seconds=240, what="it trains")
        launches = untrained.launches("2proc")
        refused = beside.run(*command, ok=False)
        assert (refused.returncode, untrained.launches("2proc")) == (4, launches), refused.stdout
        said = refused.stdout.splitlines()[-1]
        assert said.startswith("train: another comparison is training on this machine: training of cell 2proc, pid ")
        assert f"pid {first.pid} on " in said
        first.send_signal(signal.SIGTERM)
        out, _ = first.communicate(timeout=120)
        assert first.returncode == 75, out
        wait_for(lambda: left_of(mark) == {}, seconds=30, what="nobody is left of an hour's training")
        # Its ranks heard: those that do not are killed, and say nothing more.
        last = events_in(steps)[-1]
        assert (last["event"], last["exit_code"]) == ("stopped", 75)
