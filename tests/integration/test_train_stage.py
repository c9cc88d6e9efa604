"""The stage `train` itself, as DVC runs it: what it refuses before it trains, and how it ends when it is asked to."""

import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.flows.toy_project import wait_for
from tests.processes import left_of, new_mark, none_left_of
from tests.training.conftest import events_in
from tests.workspace import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture
def untrained(cold_workspace: Workspace) -> Workspace:
    """A workspace in which every segment of 2proc is still to be trained, 300 of them."""
    cold_workspace.change({"train.epochs": 150, "train.learning_rate": 1e-3})
    cold_workspace.repro("fingerprint")
    return cold_workspace


def _command(workspace: Workspace) -> list[str]:
    """Return the command of train@2proc, as it stands in dvc.yaml."""
    stages = YAML(typ="safe", pure=True).load(workspace.folder / "dvc.yaml")["stages"]
    return shlex.split(str(stages["train"]["do"]["cmd"]).replace("${key}", "2proc"))


def _refused(workspace: Workspace) -> str:
    """Run the stage; return the line of its refusal, after a look at what it did not do."""
    launches = workspace.launches("2proc")
    ran = workspace.run(*_command(workspace), ok=False)
    assert ran.returncode == 4, ran.stdout
    assert workspace.launches("2proc") == launches, "no rank was started"
    return ran.stdout.splitlines()[-1]


def _mount(folder: Path, *options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")


def test_a_disk_without_room_for_the_checkpoints_is_refused_with_the_numbers(untrained: Workspace) -> None:
    runs = untrained.folder / ".work" / "runs"
    _mount(runs, "-o", "size=8m")
    try:
        said = _refused(untrained)
    finally:
        subprocess.run(["umount", runs], check=True)
    assert "bytes are free" in said
    assert "are needed: 301.2 times" in said


def test_a_read_only_work_folder_is_refused_by_name(untrained: Workspace) -> None:
    runs = untrained.folder / ".work" / "runs"
    _mount(runs, "-o", "ro")
    try:
        assert _refused(untrained).endswith(
            f"{runs}/2proc: Read-only file system; nothing was started: make the folder writable, or move the project"
        )
    finally:
        subprocess.run(["umount", runs], check=True)


def test_a_second_training_is_refused_and_the_first_saves_and_exits_with_75(untrained: Workspace) -> None:
    mark = new_mark()
    steps = untrained.folder / ".work" / "runs" / "2proc" / "steps.jsonl"
    steps.unlink()
    with none_left_of(mark):
        first = subprocess.Popen(
            _command(untrained),
            cwd=untrained.folder,
            env=untrained.environment(**mark),
            stdout=-1,
            stderr=-2,
            text=True,
        )
        wait_for(lambda: any(event["event"] == "step" for event in events_in(steps)), seconds=240, what="it trains")
        said = _refused(untrained)
        assert said.startswith("train: another comparison is training on this machine: training of cell 2proc, pid ")
        assert f"pid {first.pid} on " in said
        asked_at = time.monotonic()
        first.send_signal(signal.SIGTERM)
        out, _ = first.communicate(timeout=120)
        assert first.returncode == 75, out
        # Ranks that do not hear it are given 12 s to save.
        assert time.monotonic() - asked_at < 10
        wait_for(lambda: left_of(mark) == {}, seconds=30, what="nobody is left of an hour's training")
        last = events_in(steps)[-1]
        assert (last["event"], last["exit_code"]) == ("stopped", 75)
