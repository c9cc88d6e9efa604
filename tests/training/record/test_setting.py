"""What a training ran with stands in its record by value, and what changed under it is not recorded at all."""

import os
import platform

import pytest
import torch

from tests.conftest import PROJECT
from tests.processes import run_python
from tests.tiny import make_slice
from tests.training.conftest import facts_of
from training.process.failure import ChangedInputError
from training.process.files import digest_code, write_json
from training.step.replica import Replica


def test_a_segment_says_what_its_ranks_ran_with_and_what_steps_changed_of_it(toy, train_here, monkeypatch):
    step = Replica.optimizer_step
    monkeypatch.setattr(Replica, "optimizer_step", lambda *given: (torch.set_num_threads(2), step(*given))[1])
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    config = toy.tell(weight_decay=0.25, seed=7)
    try:
        train_here(config)
    finally:
        torch.set_num_threads(1)
    setting, later = facts_of(config)["settings"]
    assert (setting["kernels"]["threads"], later["kernels"]["threads"]) == (1, 2)
    told = {key: value for key, value in config.items() if key in setting["train"]}
    assert setting["train"] == told
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    assert setting["versions"] | versions == setting["versions"]
    assert (setting["kernels"]["attention"], setting["kernels"]["deterministic"]) == ("sdpa", False)
    assert setting["environment"]["NCCL_ALGO"] == "Tree"
    assert "NCCL_SOCKET_IFNAME" not in setting["environment"]
    assert setting["priority"]["niceness"] == os.getpriority(os.PRIO_PROCESS, 0)


def test_rows_written_to_while_they_are_trained_on_make_no_segment(toy, train_here, monkeypatch):
    rows, step = make_slice(toy.folder / "0-45", num_rows=45), Replica.optimizer_step

    def step_and_write(self, *arguments):
        with (rows / "tokens.npy").open("r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(bytes(4))
        return step(self, *arguments)

    monkeypatch.setattr(Replica, "optimizer_step", step_and_write)
    with pytest.raises(ChangedInputError, match=r"tokens\.npy changed while it was trained on"):
        train_here(toy.tell(slices=[rows]))
    assert not list((toy.folder / "work" / "segments").glob("*/segment.json"))


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_ranks_refuse_code_that_changed_since_they_were_started(toy):
    write_json(toy.folder / "config.json", toy.tell())
    for digest, code in (("0" * 64, 3), (digest_code(), 0)):
        done = run_python("-m", "training", "--config", toy.folder / "config.json", "--code", digest, folder=PROJECT)
        assert done.returncode == code, done.stderr[-3000:]
        assert ("training/ changed between the start of the ranks and their imports" in done.stderr) == (code == 3)
