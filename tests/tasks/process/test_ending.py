"""A stage whose ranks train under a real torchrun is asked to stop, or loses a part of itself, at several moments."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, NamedTuple

import pytest

from tests.conftest import PROJECT
from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, write_device
from tests.flows.toy_project import wait_for
from tests.processes import find, left_of, new_mark, none_left_of
from tests.tiny import make_config, make_slice
from tests.training.conftest import events_in
from training.process.files import write_json
from training.state.receipt import find_receipt_problem

pytestmark = pytest.mark.slow

_SECONDS_TO_BE_GONE = 30.0
"""What is left behind trains for minutes."""
_SECONDS_TO_END = 10.0
"""A stage that is not heard by its ranks waits 12 s for them to save."""


class Stage(NamedTuple):
    """A stage that trains longer than any test."""

    work: Any
    config: dict[str, Any]
    python: str
    """Of the stage, and so of torchrun and its ranks."""
    mark: dict[str, str]

    def start(self):
        """Start it on what the last launch has left."""
        (self.work / "steps.jsonl").unlink(missing_ok=True)
        write_json(self.work.with_suffix(".json"), self.config)
        return subprocess.Popen(
            [self.python, "-m", "tests.tasks.process.rank_stage", str(self.work.with_suffix(".json"))],
            cwd=PROJECT, env={**os.environ, **self.mark}, stdout=-1, stderr=-1, text=True,
        )  # fmt: skip

    def events(self, kind):
        return [event for event in events_in(self.work / "steps.jsonl") if event["event"] == kind]

    def last_step(self):
        return max((event["step"] for event in self.events("step")), default=0)

    def start_and_wait_for_steps(self, count):
        process = self.start()
        wait_for(
            lambda: len(self.events("step")) >= count or process.poll() is not None, seconds=180, what="ranks train"
        )
        assert process.poll() is None, process.communicate()
        return process

    def whole_checkpoints(self):
        """Return the steps of the checkpoints, after looking at every byte of them.

        What was being written when the process was killed has another name, and is removed at the next start.
        """
        fingerprint = self.config["segments"][0]["fingerprint"]
        named = sorted((self.work / "partial" / fingerprint).glob("step-*"))
        steps = {folder: folder.name.removeprefix("step-") for folder in named}
        whole = {folder: int(step) for folder, step in steps.items() if step.isdigit()}
        assert {find_receipt_problem(folder, fingerprint=fingerprint) for folder in whole} <= {None}
        return list(whole.values())

    def require_gone(self):
        wait_for(lambda: not left_of(self.mark), seconds=_SECONDS_TO_BE_GONE, what="nobody is left")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A model whose layers sleep, which leaves the cores to who starts, and more rows than any test waits for."""
    root = tmp_path_factory.mktemp("endless")
    device = EmulatedDevice(forward_ms=4)
    return write_device(root / "model", device), [make_slice(root / "rows", num_rows=20_000)]


@pytest.fixture
def make_stage(inputs, tmp_path):
    """Return `make_stage(name, python, **changes)`: two ranks of that interpreter."""
    with contextlib.ExitStack() as stack:

        def make(name, python, **changes):
            work = tmp_path / name / "work"
            config = make_config(
                work, *inputs, cell="2proc", strategy="ddp", world_size=2, global_batch_size=4, micro_batch_size=1,
                workload=WORKLOAD, **changes,
            )  # fmt: skip
            stage = Stage(work, config, str(python), new_mark())
            stack.enter_context(none_left_of(stage.mark))
            return stage

        yield make


def _end(process, number=None):
    """Send the signal, if there is one; return exit code and last line."""
    if number is not None:
        process.send_signal(number)
    _, said = process.communicate(timeout=120)
    return process.returncode, said.strip().splitlines()[-1]


def test_sigterm_saves_the_step_it_comes_in_and_exits_with_75_at_any_moment(make_stage, warm):
    # Its ranks start at once: they are asked, not killed.
    stage, saved = make_stage("one", warm / "python"), 0
    for num_steps in (0, 1, 30):
        process = stage.start_and_wait_for_steps(num_steps)
        wait_for(lambda: (stage.work / "config.json").exists(), seconds=120, what="the ranks are being started")
        seen, asked_at = stage.last_step(), time.monotonic()
        code, said = _end(process, signal.SIGTERM)
        assert code == 75, said
        assert time.monotonic() - asked_at < _SECONDS_TO_END
        assert said.startswith("train: cell 2proc ")
        stage.require_gone()
        if num_steps:
            resumed = stage.events("segment_started")[0]["resumed_at_step"] or 0
            assert resumed == saved, "the launch went on where the last one was stopped"
            saved = stage.whole_checkpoints()[-1]
            assert saved >= seen > resumed
            assert saved == stage.last_step()


def test_ctrl_c_twice_ends_now_and_the_last_checkpoint_is_whole(make_stage):
    stage = make_stage("one", sys.executable, checkpoint_every_steps=2)
    process = stage.start_and_wait_for_steps(9)
    # Ranks that do not get to run can save nothing: only the second signal ends them.
    for rank in [pid for pid, command in left_of(stage.mark).items() if "-m training" in command]:
        os.kill(rank, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    asked_at = time.monotonic()
    assert _end(process, signal.SIGINT) == (130, "train: interrupted")
    assert time.monotonic() - asked_at < _SECONDS_TO_END
    stage.require_gone()
    # Three, if it was stopped between writing one and dropping the oldest.
    assert len(stage.whole_checkpoints()) in (2, 3)


def test_two_runs_side_by_side_though_the_usual_port_is_taken_one_loses_torchrun_the_other_gets_ctrl_c(
    make_stage, warm
):
    # What is killed is started as users start it.
    one, other = make_stage("one", sys.executable), make_stage("other", warm / "python")
    with socket.socket() as usual:
        usual.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        usual.bind(("", 29500))
        usual.listen()
        process = one.start_and_wait_for_steps(3)
        # It starts at once, and would otherwise train for as long as the first one imports.
        other_process = other.start_and_wait_for_steps(3)

        os.kill(find(one.mark, "torch.distributed.run"), signal.SIGKILL)
        code, said = _end(process)
        assert (code, said.startswith("train: cell 2proc: torchrun ended:")) == (6, True), said
        one.require_gone()

        assert other_process.poll() is None
        assert _end(other_process, signal.SIGINT)[0] == 130
        assert other.whole_checkpoints() == [other.last_step()]
        other.require_gone()
