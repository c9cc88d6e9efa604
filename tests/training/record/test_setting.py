"""What a training ran with stands in its record by value, and what changed under it is not recorded at all."""

import hashlib
import os
import platform
import socket
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.conftest import PROJECT
from tests.tiny import make_slice
from tests.training.changed_rank import BEFORE
from tests.training.conftest import Launch, Toy, facts_of
from tests.training.forked_ranks import ForkedRanks, last_words
from training.process.failure import ChangedInputError
from training.process.files import write_json
from training.process.unwritten import digest_code
from training.step.replica import Replica


def test_a_segment_says_what_its_ranks_ran_with(toy: Toy, train_here: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("FAULT", "rank=1,step=1,kind=slow:2")
    config = toy.tell(weight_decay=0.25, seed=7)
    train_here(config)
    (setting,) = facts_of(config)["settings"]
    told = {key: value for key, value in config.items() if key in setting["train"]}
    assert setting["train"] == told
    assert {"weight_decay", "seed", "schedule", "precision", "micro_batch_size"} < set(told)
    assert setting["workload"] == "causal_lm"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    assert setting["versions"] | versions == setting["versions"]
    assert (setting["kernels"]["attention"], setting["kernels"]["deterministic"]) == ("sdpa", False)
    assert setting["environment"]["NCCL_ALGO"] == "Tree"
    assert "NCCL_SOCKET_IFNAME" not in setting["environment"]
    assert setting["priority"]["niceness"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert (setting["ranks_differ"], setting["packages"]) == ({}, {})
    assert set(setting["interpreter"]) == {"watched_by"}
    assert set(setting["run_at_start"][socket.gethostname()]) == {"sitecustomize", "usercustomize"}
    assert setting["planned_faults"] == "rank=1,step=1,kind=slow:2"


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["another", None])
def test_what_python_ran_at_the_start_and_another_environment_are_recorded_machine_by_machine(
    machine: str | None, ranks: ForkedRanks, toy: Toy
) -> None:
    """One rank of two has it, and is on another machine, or beside the first."""
    config, own = toy.tell(world_size=2), toy.folder / "own" / "usercustomize.py"
    for folder in (own.parent, work := toy.folder / "work"):
        folder.mkdir()
    own.write_text("ran = True\n")
    (work / BEFORE).write_text(
        "import os, socket, sys\n"
        "if os.environ['RANK'] == '1':\n"
        f"    sys.path.insert(0, {str(own.parent)!r}); import usercustomize\n"
        f"    name = {machine!r} or socket.gethostname(); socket.gethostname = lambda: name\n"
        "    os.environ['MKL_CBWR'] = 'COMPATIBLE'\n"
    )
    assert ranks.launch(config, entry="tests.training.changed_rank") == [0, 0], last_words(config)
    (setting,) = facts_of(config)["settings"]
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    told = {name: one["usercustomize"] for name, one in setting["run_at_start"].items()}
    assert told == {socket.gethostname(): None} | ({machine: digest} if machine else {})
    beside = {} if machine else {"run_at_start.usercustomize": digest}
    assert setting["ranks_differ"] == {"rank 1": {"environment.MKL_CBWR": "COMPATIBLE", **beside}}


def test_rows_written_to_while_they_are_trained_on_make_no_segment(
    toy: Toy, train_here: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, step = make_slice(toy.folder / "0-45", num_rows=45), Replica.step

    def step_and_write(self: Replica, *arguments: Any) -> Any:
        with (rows / "tokens.npy").open("r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(bytes(4))
        return step(self, *arguments)

    monkeypatch.setattr(Replica, "step", step_and_write)
    with pytest.raises(ChangedInputError, match=r"tokens\.npy changed while it was trained on"):
        train_here(toy.tell(slices=[rows]))
    assert not list((toy.folder / "work" / "segments").glob("*/segment.json"))


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_ranks_refuse_code_that_changed_since_they_were_started(toy: Toy) -> None:
    write_json(toy.folder / "config.json", toy.tell())
    for digest, code in (("0" * 64, 3), (digest_code(), 0)):
        done = subprocess.run(
            [sys.executable, "-m", "training", "--config", str(toy.folder / "config.json"), "--code", digest],
            cwd=PROJECT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr[-3000:]
        assert ("training/ changed between the start of the ranks and their imports" in done.stderr) == (code == 3)
