"""Scripts that say little or nothing of a training: a line says so, and a single step is no reason to call it right."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_audit.__main__ import require_steps
from ddp_audit.asked import parse_request
from ddp_audit.checks import ask_all
from ddp_audit.failure import ConfigurationError, ScriptError
from ddp_audit.launched import Audit, Launched
from ddp_audit.speed import compute_speeds
from tests.auditing.forked_scripts import ForkedScripts

_ONE_STEP = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).sum().backward()
optimizer.step()
"""
_FORKS = """
import os
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
"""
_FOREIGN = """
import torch
class Careful(torch.optim.SGD):
    pass
model = torch.nn.Linear(2, 1)
optimizer = Careful(model.parameters(), lr=0.1)
for _ in range(3):
    try:
        model(torch.ones(4, 3)).sum()
    except RuntimeError:
        pass
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(model, "whole.pt")
assert type(torch.load("whole.pt", weights_only=False)) is torch.nn.Linear
import copy, pickle, time
copy.deepcopy(model)
assert pickle.loads(pickle.dumps(time.time)) is time.time
assert b"ddp_audit" not in open("whole.pt", "rb").read()
"""


@pytest.fixture
def launch(forked: ForkedScripts, tmp_path: Path) -> Callable[[str], Launched]:
    def run(script: str) -> Launched:
        (tmp_path / "script.py").write_text(script)
        return forked.launch([str(tmp_path / "script.py")], cell="1proc", world_size=1, folder=tmp_path)

    return run


@pytest.mark.slow
def test_a_script_that_only_forks_is_told_so(launch: Callable[[str], Launched], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no optimizer step .* it forked 3 processes, which are not observed"):
        require_steps(launch(_FORKS), started_in=tmp_path)


@pytest.mark.slow
def test_a_script_that_goes_on_as_another_program_is_told_so(launch: Callable[[str], Launched], tmp_path: Path) -> None:
    becomes = "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(1)'])\n"
    launched = launch(f"{_ONE_STEP}\n{becomes}")
    assert (launched.exit_code, launched.num_steps) == (0, 1)
    with pytest.raises(ConfigurationError, match=r"became another program \(/.*\) after 1 step on rank 0"):
        require_steps(launched, started_in=tmp_path)
    # One that cannot, or whose child does, is still itself.
    fails = f"{_ONE_STEP}\nimport os\ntry:\n    os.execv('/no/program', ['x'])\nexcept OSError:\n    pass\n"
    child = "pid = os.fork()\nif pid == 0:\n    os.execv('/bin/true', ['true'])\nos.waitpid(pid, 0)\n"
    require_steps(launch(fails + child), started_in=tmp_path)


@pytest.mark.slow
def test_a_script_that_fails_keeps_its_exit_code_and_its_steps(
    launch: Callable[[str], Launched], tmp_path: Path
) -> None:
    launched = launch(f"{_ONE_STEP}\nraise SystemExit(9)")
    assert (launched.exit_code, launched.num_steps) == (9, 1)
    with pytest.raises(ScriptError, match=f"it was started in {tmp_path} "):
        require_steps(launched, started_in=tmp_path)


@pytest.mark.slow
def test_one_step_is_a_record_and_no_speed(launch: Callable[[str], Launched], tmp_path: Path) -> None:
    launched = launch(_ONE_STEP)
    require_steps(launched, started_in=tmp_path)
    audit = Audit(parse_request({"SCRIPT": "script.py", "CELLS": "1", "FOLDER": str(tmp_path)}), {"1proc": [launched]})
    assert compute_speeds(audit) == []
    assert all(gate.verdict != "failed" for gate in ask_all(audit))


@pytest.mark.slow
def test_what_the_script_makes_holds_nothing_of_the_observer(launch: Callable[[str], Launched]) -> None:
    launched = launch(_FOREIGN)
    assert launched.exit_code == 0, launched.ending
    assert launched.num_steps == 3
    assert launched.ranks[0].is_whole
