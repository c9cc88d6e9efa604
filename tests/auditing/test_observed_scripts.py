"""Scripts that say little of a training, do to their process what no script should, or make steps look shorter."""

import json
import sys
from functools import partial

import pytest

from ddp_audit.__main__ import require_steps, run_audit
from ddp_audit.asked import ConfigurationError, ScriptError, parse_request
from ddp_audit.checks import ask_all
from ddp_audit.findings.cells import global_batch, same_step
from ddp_audit.findings.hygiene import clock, plain_baseline
from ddp_audit.findings.parameters import UNWRAPPED, same_parameters
from ddp_audit.observer.clocks import Clocks, ScriptLines
from ddp_audit.observer.record import Guard, Record
from ddp_audit.observer.timeline import Place, Timeline
from ddp_audit.records import Audit
from ddp_audit.speed import compute_speeds, split_steps, sum_other_work
from tests.auditing.conftest import ask

pytestmark = pytest.mark.slow
_STEP = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).sum().backward()
optimizer.step()
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
def run(launch, tmp_path):
    """Return what runs a text as a script on one rank."""

    def start(script, **how):
        (tmp_path / "script.py").write_text(script)
        return launch(["script.py"], tmp_path, **how)

    return start


def test_a_script_that_goes_on_as_another_program_is_told_so(run, tmp_path):
    becomes = "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(1)'])\n"
    launched = run(f"{_STEP}\n{becomes}")
    assert (launched.exit_code, launched.num_steps) == (0, 1)
    with pytest.raises(ConfigurationError, match=r"became another program \(/.*\) after 1 step on rank 0"):
        require_steps(launched, started_in=tmp_path)
    # One that cannot, or whose child does, is still itself.
    fails = f"{_STEP}\nimport os\ntry:\n    os.execv('/no/program', ['x'])\nexcept OSError:\n    pass\n"
    child = "pid = os.fork()\nif pid == 0:\n    os.execv('/bin/true', ['true'])\nos.waitpid(pid, 0)\n"
    require_steps(run(fails + child), started_in=tmp_path)


def test_a_script_that_fails_keeps_its_exit_code_and_its_steps_and_one_step_is_no_speed(run, audit_script, tmp_path):
    launched = run(f"{_STEP}\nraise SystemExit(9)")
    assert (launched.exit_code, launched.num_steps) == (9, 1)
    with pytest.raises(ScriptError, match=f"it was started in {tmp_path} "):
        require_steps(launched, started_in=tmp_path)
    audit = audit_script(_STEP, cells="1")
    assert compute_speeds(audit) == []
    assert all(gate.outcome != "failed" for gate in ask_all(audit))


def test_what_the_script_makes_holds_nothing_of_the_observer(audit_script):
    assert audit_script(_FOREIGN, cells="1").first("1proc").num_steps == 3


_LOOP = _STEP.replace("model(", "for _ in range(5):\n    model(").replace(
    "\noptimizer.step()", "\n    optimizer.step()"
)
_OPENS = "own = [open(f'own-{number}', 'w') for number in range(8)]\n"
_FORGED = r"""
import os
paths = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
record = next(path for path in paths if path.endswith("rank-0.jsonl"))
with open(record, "a") as file:
    for kind in ("window", "pass", "asked", "open", "loaded", "loader", "end", "torch", "children"):
        file.write('{"kind": "%s", "begin": [], "end": 7, "loader": 0}\n' % kind)
    file.write('{"kind": "step", "step": 2, "micros": [{}], "seconds": {}}\n')
"""
_HOSTILE = {
    "forges lines": _FORGED,
    "closes all files": f"import os\nos.closerange(3, 512)\n{_OPENS}",
    "closes ours, too": f"import os\nos.closerange(3, 65536)\n{_OPENS}",
    "stops the clocks": "import time\nfor name in ('time', 'perf_counter', 'monotonic', 'process_time'):\n"
    "    setattr(time, name, lambda: 0.0)\n",
    "replaces what it can": "import builtins, json, os, sys, threading\nos.write = os.getpid = json.dumps = None\n"
    "threading.current_thread = threading.main_thread = None\nsys.modules['__main__'] = object()\n",
    "transforms a model": "import torch\nhead = torch.nn.Linear(2, 1)\ntorch.vmap(torch.func.grad(lambda row: "
    "torch.nn.functional.mse_loss(head(row), torch.ones(1))))(torch.ones(3, 2))\n",
    "hooks a loss that it has changed in its place": "import torch\nhead, seen = torch.nn.Linear(2, 1), []\n"
    "loss = torch.nn.functional.mse_loss(head(torch.ones(3, 2)), torch.ones(3, 1))\nloss /= 2\n"
    "loss.register_hook(seen.append)\nloss.backward()\nassert seen == [1]\n",
    "compiles losses": "import torch\nfor loss in (torch.nn.CrossEntropyLoss(), torch.nn.MSELoss()):\n"
    "    torch.jit.script(loss)\n",
    "captures a CUDA graph": "import torch\ntorch.cuda.is_initialized = lambda: True\n"
    "torch.cuda.is_current_stream_capturing, torch.Tensor.cpu = torch.cuda.is_initialized, None\n",
    "has no modules": "import sys, torch\nfor name in [one for one in sys.modules if one.startswith('ddp_audit')]:\n"
    "    del sys.modules[name]\n",
}


@pytest.mark.parametrize("name", list(_HOSTILE))
def test_a_hostile_script_runs_as_it_would_and_is_observed(run, tmp_path, name):
    launched = run(_HOSTILE[name] + _LOOP)
    assert launched.exit_code == 0, launched.ending
    # Nothing of ours is in what it opened itself.
    assert all(not file.read_bytes() for file in tmp_path.glob("own-*"))
    assert launched.num_steps == (0 if name == "closes ours, too" else 5)
    assert "broken" not in launched.ranks[0].lines


_TRAIN = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
is_again = os.path.exists(f"made-{world_size}")
dist.barrier()
open(f"made-{world_size}", "w").close()
torch.manual_seed(0)
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
model = torch.nn.Linear(8, 1)
wrapped = DistributedDataParallel(model) if world_size > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=8 // world_size, sampler=DistributedSampler(data, world_size, rank, seed=0))
began = time.perf_counter()
for rows, wanted in loader:
    answers = wanted
    ((wrapped(rows) - answers) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
seconds = time.perf_counter() - began
dist.destroy_process_group()
"""
_ANSWERS = "    answers = wanted\n"
_BY_ITSELF = f"""{_ANSWERS}    with torch.no_grad():
        for _ in range(50):
            answers = model(rows) + wanted
"""
_END = "seconds = time.perf_counter() - began\n"
_AT_THE_END = """with torch.no_grad():
    model(torch.ones(4, 8))
seconds = time.perf_counter() - began
for rows, wanted in loader:
    ((wrapped(rows) - wanted) ** 2).mean().backward()
    optimizer.step()
"""


def test_what_a_model_answers_itself_in_every_step_is_a_part_of_it_and_now_and_then_it_is_none(audit_script):
    """Self-distillation, or what a policy does before it learns: without it a step would be a few of its percent."""
    audit = audit_script(_TRAIN, {_ANSWERS: _BY_ITSELF}, cells="1")
    launched = audit.first("1proc")
    assert "evaluation" in split_steps(launched)
    assert "evaluation" not in sum_other_work(launched)
    # A step is no shorter than what it is made of.
    assert compute_speeds(audit)[0].step_seconds >= sum(split_steps(launched).values()) * (1 - 1e-6)
    assert ask(audit, clock, "1proc").outcome == "passed"
    launched = audit_script(_TRAIN, {_END: _AT_THE_END}, cells="1").first("1proc")
    assert launched.num_steps == 40
    assert "evaluation" not in split_steps(launched)
    assert sum_other_work(launched)["evaluation"] > 0


def test_a_baseline_that_fails_without_torchrun_stays_wrapped_and_no_report_stays_of_another_script(
    run, tmp_path, monkeypatch
):
    (tmp_path / "script.py").touch()
    request = parse_request({"SCRIPT": "script.py", "CELLS": "1", "FOLDER": str(tmp_path)})
    audit = partial(run_audit, request, work=tmp_path, reports=tmp_path, stop=None)
    script = _TRAIN.replace(" if world_size > 1 else model", "")
    monkeypatch.setattr(
        "ddp_audit.__main__.launch_script", lambda *_, is_alone=False, **__: run(script, is_alone=is_alone)
    )
    audit()
    found = json.loads((tmp_path / "findings.json").read_text())["findings"]
    (baseline,) = next(gate["findings"] for gate in found if gate["name"] == plain_baseline.name)
    assert baseline["outcome"] == "failed"
    assert "started by python alone it does not train" in baseline["compared"]
    script = "import torch\n"
    with pytest.raises(ConfigurationError, match=r"no optimizer step of torch.optim was seen") as told:
        audit()
    assert told.value.exit_code == 2
    assert not (tmp_path / "findings.json").exists()


@pytest.mark.parametrize(
    ("edits", "question", "code"),
    [
        ({"if world_size > 1 else model": "if world_size > 1 and not is_again else model"}, same_parameters, UNWRAPPED),
        ({"=8 // world_size": "=8 // (1 if is_again else world_size)"}, global_batch, "other_batch"),
    ],
)
def test_what_only_a_later_launch_does_is_found(audit_script, edits, question, code):
    audit = audit_script(_TRAIN, edits, num_launches=2)
    found = ask(audit, question)
    assert (found.outcome, found.code) == ("failed", code)
    assert "launch 2" in found.compared
    first = Audit(audit.request, {cell: launches[:1] for cell, launches in audit.launches.items()})
    assert ask(first, question).outcome == "passed"


_OTHERWISE = {
    "torch.optim.SGD(model.parameters(), lr=0.01)": "torch.optim.SGD(model.parameters(), lr=0.01, "
    "momentum=0.9 if world_size == 1 else 0)\ntorch.autograd.set_detect_anomaly(world_size == 1)",
    "model = torch.nn.Linear(8, 1)\n": "model = torch.nn.Linear(8, 1)\nmodel.bias.requires_grad_(world_size == 1)\n",
    "    optimizer.step()\n": "    if world_size == 1:\n"
    "        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)\n    optimizer.step()\n",
    "wrapped = Dist": "model.train(world_size == 1)\nwrapped = Dist",
}
_DROPPED = {
    "model = torch.nn.Linear(8, 1)\n": """class Dropping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.module, self.first, self.second = "no module", torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
        self.number = 0
    def forward(self, rows):
        self.number += 1
        uses_both = (self.number + rank) % 2 or self.number % 3 == 0
        return self.first(rows) + (self.second(rows) if uses_both else 0)
model = Dropping()
""",
    "DistributedDataParallel(model)": "DistributedDataParallel(model, find_unused_parameters=True)",
}
_ONE_BY_ONE = {
    "=8 // world_size": "=1 if world_size == 1 else 4",
    "    optimizer.step()\n    optimizer.zero_grad()\n": "    rank += world_size == 1\n"
    "    if world_size == 2 or rank % 8 == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n",
}


@pytest.mark.parametrize(
    ("edits", "code", "says"),
    [
        (
            _OTHERWISE,
            "other_step",
            "training mode False, 1proc True; SGD's momentum 0, 1proc 0.9; torch's detect_anomaly False, 1proc "
            "True; tensors with a gradient 1, 1proc 2; clipping none, 1proc 2",
        ),
        # `module` is a name like others.
        pytest.param(_DROPPED, "layers_dropped", "tensors with a gradient", id="layers dropped now and then"),
        pytest.param(_ONE_BY_ONE, "other_micro_batches", "4 samples at once, and 1proc 1", id="fed one by one"),
    ],
)
def test_what_cells_compute_is_compared_by_what_it_is(audit_script, edits, code, says):
    found = ask(audit_script(_TRAIN, edits), same_step)
    assert found.code == code, found
    assert says in found.compared


_IN_TURNS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
makes, judges = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (judges, makes)]
for (real,) in DataLoader(TensorDataset(torch.randn(80, 8)), batch_size=4):
    judges.requires_grad_(True)
    (judges(makes(torch.randn(4, 4)).detach()).mean() - judges(real).mean()).backward()
    optimizers[0].step()
    judges.requires_grad_(False)
    (-judges(makes(torch.randn(4, 4))).mean()).backward()
    optimizers[1].step()
    [one.zero_grad() for one in optimizers]
"""
_GATHERED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (rows,) in list(DataLoader(TensorDataset(torch.randn(80, 8)), batch_size=4)):
    model(rows).sum().backward()
optimizer.step()
"""


def test_models_that_learn_in_turns_are_both_looked_at_to_the_end(run):
    steps = run(_IN_TURNS).ranks[0].steps
    assert len(steps) == 40
    # Of those that judge, the rows are known; a model that is frozen in every second step is not lost.
    assert all(step["micros"][0].get("ids") for step in steps[::2])
    assert {step["micros"][0]["module"] for step in steps[2::2]} == {steps[0]["micros"][0]["module"]}
    # Every step that is sampled after the first four is an even one, at which the other one learns; both were called.
    assert [len(step["weights"]["digests"]) for step in steps if "weights" in step] == [4] * 7


def test_batches_that_are_gathered_before_the_first_is_learned_from_keep_their_rows(run):
    (step,) = run(_GATHERED).ranks[0].steps
    assert [index for micro in step["micros"] for index in micro["ids"]] == list(range(80))


def test_a_clock_is_followed_however_often_it_is_read(tmp_path):
    record = Record(str(tmp_path), rank=0)
    clocks = Clocks(record, Guard(record), Timeline(Place(None)), ScriptLines())

    def read(value, held):
        # What the frame holds is what is looked at.
        assert held < value
        clocks._see(value, sys._getframe())

    num_steps = 15_000
    for number in range(num_steps):
        clocks.count_steps = lambda number=number: number
        read(number + 0.25, held=-1.0)
        clocks.count_steps = lambda number=number: number + 1
        read(number + 0.5, held=number + 0.25)
    # The whole run, too, is timed by what was read long ago.
    read(1e6, held=0.25)
    clocks.finish()
    last = json.loads((tmp_path / "rank-0.jsonl").read_text().splitlines()[-1])
    assert (last["number"], last["num_steps"]) == (num_steps + 1, 2 * num_steps)
