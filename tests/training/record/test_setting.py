"""What a training ran with stands in its record by value, and what changed under it is not recorded at all."""

import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import PROJECT
from tests.extras import skip_without
from tests.tiny import make_config, make_slice
from tests.training.changed_rank import BEFORE
from tests.training.conftest import facts_of
from tests.training.forked_ranks import ForkedRanks, last_words
from training.process.failure import ChangedInputError
from training.process.files import write_json
from training.process.unwritten import digest_code


def test_a_segment_says_what_its_ranks_ran_with(
    train_here: Callable[..., Any], tiny_model: Path, slices: list[Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("FAULT", "rank=1,step=1,kind=slow:2")
    config = make_config(tmp_path / "work", tiny_model, slices[:1], weight_decay=0.25, seed=7)
    train_here(config)
    (setting,) = facts_of(config)["settings"]
    told = {key: value for key, value in config.items() if key in setting["train"]}
    assert setting["train"] == told
    assert {"weight_decay", "seed", "schedule", "precision", "micro_batch_size"} < set(told)
    assert setting["workload"] == "causal_lm"
    assert setting["versions"]["torch"] == torch.__version__
    assert setting["versions"]["python"] == platform.python_version()
    assert setting["kernels"]["attention"] == "sdpa"
    assert setting["kernels"]["deterministic"] is False
    assert setting["environment"]["NCCL_ALGO"] == "Tree"
    assert "NCCL_SOCKET_IFNAME" not in setting["environment"]
    assert setting["priority"]["niceness"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert setting["ranks_differ"] == {}
    assert setting["packages"] == {}
    assert set(setting["interpreter"]) == {"watched_by"}
    assert set(setting["run_at_start"][socket.gethostname()]) == {"sitecustomize", "usercustomize"}
    assert setting["planned_faults"] == "rank=1,step=1,kind=slow:2"


def test_the_version_of_what_makes_adapters_is_in_the_record(
    train_here: Callable[..., Any], tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    skip_without("peft")
    skip_without("bitsandbytes")
    lora = {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": "all-linear", "base": "nf4"}
    config = make_config(tmp_path / "work", tiny_model, slices[:1], adapter=lora)
    train_here(config)
    (setting,) = facts_of(config)["settings"]
    assert setting["packages"] == {name: importlib.metadata.version(name) for name in ("peft", "bitsandbytes")}


def _train_changed(ranks: ForkedRanks, config: dict[str, Any], before: str) -> dict[str, Any]:
    """Train with ranks that run this first; return what they put down of their setting."""
    (work := Path(config["work_dir"])).mkdir()
    (work / BEFORE).write_text(before)
    codes = ranks.launch(config, entry="tests.training.changed_rank")
    assert codes == [0, 0], last_words(config)
    (setting,) = facts_of(config)["settings"]
    found: dict[str, Any] = setting
    return found


@pytest.mark.slow
def test_a_rank_with_another_environment_is_named_in_the_record(
    ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices[:1], strategy="ddp", world_size=2)
    before = "import os\nif os.environ['RANK'] == '1': os.environ['MKL_CBWR'] = 'COMPATIBLE'\n"
    setting = _train_changed(ranks, config, before)
    assert setting["ranks_differ"] == {"rank 1": {"environment.MKL_CBWR": "COMPATIBLE"}}


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["another", None])
def test_what_python_ran_at_the_start_is_recorded_machine_by_machine(
    ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path, machine: str | None
) -> None:
    """One rank of two has it, and is on another machine, or beside the first."""
    config = make_config(tmp_path / "work", tiny_model, slices[:1], strategy="ddp", world_size=2)
    own = tmp_path / "own" / "usercustomize.py"
    own.parent.mkdir()
    own.write_text("ran = True\n")
    before = (
        "import os, socket, sys\n"
        "if os.environ['RANK'] == '1':\n"
        f"    sys.path.insert(0, {str(own.parent)!r}); import usercustomize\n"
        f"    name = {machine!r} or socket.gethostname(); socket.gethostname = lambda: name\n"
    )
    setting = _train_changed(ranks, config, before)
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    told = {name: one["usercustomize"] for name, one in setting["run_at_start"].items()}
    assert told == {socket.gethostname(): None} | ({machine: digest} if machine else {})
    assert setting["ranks_differ"] == ({} if machine else {"rank 1": {"run_at_start.usercustomize": digest}})


def test_rows_written_to_while_they_are_trained_on_make_no_segment(
    train_here: Callable[..., Any], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_slice(tmp_path / "0-45", num_rows=45)
    config = make_config(tmp_path / "work", tiny_model, [rows])
    from training.step.replica import Replica

    step = Replica.step

    def step_and_write(self: Replica, *arguments: Any) -> Any:
        with (rows / "tokens.npy").open("r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(bytes(4))
        return step(self, *arguments)

    monkeypatch.setattr(Replica, "step", step_and_write)
    with pytest.raises(ChangedInputError, match=r"tokens\.npy changed while it was trained on"):
        train_here(config)
    assert not list((tmp_path / "work" / "segments").glob("*/segment.json"))


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_ranks_refuse_code_that_changed_since_they_were_started(
    tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices[:1])
    write_json(tmp_path / "config.json", config)
    for digest, code in (("0" * 64, 3), (digest_code(), 0)):
        done = subprocess.run(
            [sys.executable, "-m", "training", "--config", str(tmp_path / "config.json"), "--code", digest],
            cwd=PROJECT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr[-3000:]
        assert ("training/ changed between the start of the ranks and their imports" in done.stderr) == (code == 3)
