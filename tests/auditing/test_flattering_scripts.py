"""Scripts whose steps look shorter than they are, or that do in one launch what they do not in another."""

import re
from pathlib import Path

import pytest

from ddp_audit.asked import parse_request
from ddp_audit.checks import ask_all, judge_cells
from ddp_audit.document import render_markdown
from ddp_audit.findings import clock, global_batch, plausible_speed, same_parameters, same_step
from ddp_audit.launched import Audit, Launched
from ddp_audit.page import make_document, tell_verdict
from ddp_audit.process.findings import Finding
from ddp_audit.speed import compute_speeds, split_steps, sum_other_work
from tests.auditing.forked_scripts import ForkedScripts

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


def _audit(forked: ForkedScripts, folder: Path, script: str, *, num_launches: int = 1, cells: str = "1,2") -> Audit:
    (folder / "script.py").write_text(script)
    request = parse_request({"SCRIPT": "script.py", "CELLS": cells, "FOLDER": str(folder)})
    launches: dict[str, list[Launched]] = {cell: [] for cell in request.cells}
    for _ in range(num_launches):
        for cell, world_size in request.cells.items():
            found = forked.launch([str(folder / "script.py")], cell=cell, world_size=world_size, folder=folder)
            assert found.exit_code == 0, found.ending
            launches[cell].append(found)
    return Audit(request, launches)


def _ask(audit: Audit, name: str, cell: str) -> Finding:
    return next(gate for gate in ask_all(audit) if gate.name == name).findings[cell]


@pytest.mark.slow
def test_what_a_model_answers_itself_in_every_step_is_a_part_of_the_step(forked: ForkedScripts, tmp_path: Path) -> None:
    """Self-distillation, or what a policy does before it learns: without it a step would be a few of its percent."""
    audit = _audit(forked, tmp_path, _TRAIN.replace(_ANSWERS, _BY_ITSELF))
    for cell in audit.request.cells:
        launched = audit.first(cell)
        assert "evaluation" in split_steps(launched)
        assert "evaluation" not in sum_other_work(launched)
        (timed,) = [one for one in compute_speeds(audit) if one.cell == cell]
        # A step is no shorter than what it is made of.
        whole = sum(split_steps(launched).values())
        assert timed.step_seconds >= whole * (1 - 1e-6)
        assert _ask(audit, clock.NAME, cell).verdict == "passed"


@pytest.mark.slow
def test_what_follows_a_program_that_every_step_starts_is_a_part_of_the_step(
    forked: ForkedScripts, tmp_path: Path
) -> None:
    tells = f"{_ANSWERS}    __import__('subprocess').run(['true'])\n    sum(range(100_000))\n"
    audit = _audit(forked, tmp_path, _TRAIN.replace(_ANSWERS, tells), cells="1")
    launched = audit.first("1proc")
    assert "subprocess" in split_steps(launched)
    assert "subprocess" not in sum_other_work(launched)
    assert _ask(audit, clock.NAME, "1proc").verdict == "failed", "it is no training, and stands in the script's clock"


@pytest.mark.slow
def test_a_look_at_other_rows_now_and_then_is_none(forked: ForkedScripts, tmp_path: Path) -> None:
    audit = _audit(forked, tmp_path, _TRAIN.replace(_END, _AT_THE_END), cells="1")
    launched = audit.first("1proc")
    assert launched.num_steps == 40
    assert "evaluation" not in split_steps(launched)
    assert sum_other_work(launched)["evaluation"] > 0


_LATER = {
    "ranks that train alone": (
        {"wrapped = DistributedDataParallel(model) if world_size > 1": "wrapped = DistributedDataParallel(model) if "
         "world_size > 1 and not is_again"},
        same_parameters.NAME,
        same_parameters.UNWRAPPED,
        {"tensors": 2},
    ),
    "twice the batch": (
        {"batch_size=8 // world_size": "batch_size=8 // (1 if is_again else world_size)"},
        global_batch.NAME,
        "other_batch",
        {"samples_per_step": 16, "samples_per_step_of_baseline": 8},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("defect", _LATER)
def test_what_only_a_later_launch_does_is_found(forked: ForkedScripts, tmp_path: Path, defect: str) -> None:
    edits, name, code, numbers = _LATER[defect]
    script = _TRAIN
    for before, after in edits.items():
        assert script.count(before) == 1
        script = script.replace(before, after)
    audit = _audit(forked, tmp_path, script, num_launches=2)
    found = _ask(audit, name, "2proc")
    assert (found.verdict, found.code, found.numbers | numbers) == ("failed", code, found.numbers)
    assert "launch 2" in found.compared
    first = Audit(audit.request, {cell: launches[:1] for cell, launches in audit.launches.items()})
    assert _ask(first, name, "2proc").verdict == "passed"


_OTHERWISE = {
    "torch.optim.SGD(model.parameters(), lr=0.01)": "torch.optim.SGD(model.parameters(), lr=0.01, "
    "momentum=0.9 if world_size == 1 else 0)\ntorch.autograd.set_detect_anomaly(world_size == 1)",
    "model = torch.nn.Linear(8, 1)\n": "model = torch.nn.Linear(8, 1)\nmodel.bias.requires_grad_(world_size == 1)\n",
    "    optimizer.step()\n": "    if world_size == 1:\n"
    "        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)\n    optimizer.step()\n",
    "wrapped = Dist": "model.train(rank == 0)\nwrapped = Dist",
}


@pytest.mark.slow
def test_a_baseline_that_does_more_in_a_step_is_told_by_what_it_does(forked: ForkedScripts, tmp_path: Path) -> None:
    script = _TRAIN
    for before, after in _OTHERWISE.items():
        assert script.count(before) == 1
        script = script.replace(before, after)
    found = _ask(_audit(forked, tmp_path, script), same_step.NAME, "2proc")
    assert found.code == "other_step"
    assert str(found.numbers["other"]).split("; ") == [
        "SGD's momentum 0, 1proc 0.9",
        "torch's detect_anomaly False, 1proc True",
        "training mode False, True, 1proc True",
        "tensors with a gradient 1, 1proc 2",
        "clipping none, 1proc 2",
    ]


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


@pytest.mark.slow
def test_layers_that_are_dropped_now_and_then_are_no_other_step_and_module_is_a_name_like_others(
    forked: ForkedScripts, tmp_path: Path
) -> None:
    script = _TRAIN
    for before, after in _DROPPED.items():
        assert script.count(before) == 1
        script = script.replace(before, after)
    found = _ask(_audit(forked, tmp_path, script), same_step.NAME, "2proc")
    assert (found.verdict, found.code) == ("not checked", "layers_dropped"), found


@pytest.mark.slow
def test_a_baseline_that_is_fed_less_at_once_makes_no_speedup_that_is_called_proven(
    forked: ForkedScripts, tmp_path: Path
) -> None:
    one_by_one = _TRAIN.replace("batch_size=8 // world_size", "batch_size=1 if world_size == 1 else 4").replace(
        "    optimizer.step()\n    optimizer.zero_grad()\n",
        "    rank += world_size == 1\n    if world_size == 2 or rank % 8 == 0:\n"
        "        optimizer.step()\n        optimizer.zero_grad()\n",
    )
    found = _ask(_audit(forked, tmp_path, one_by_one), same_step.NAME, "2proc")
    assert (found.verdict, found.code) == ("not checked", "other_micro_batches")
    assert "4 samples at once, and 1proc 1" in str(found.numbers["doubt"])


@pytest.mark.slow
def test_a_baseline_that_waits_makes_no_speedup_that_is_called_proven(forked: ForkedScripts, tmp_path: Path) -> None:
    waits = f"{_ANSWERS}    time.sleep(0.5 if world_size == 1 else 0)\n"
    audit = _audit(forked, tmp_path, _TRAIN.replace(_ANSWERS, waits))
    found = _ask(audit, plausible_speed.NAME, "2proc")
    assert (found.verdict, found.code) == ("not checked", "beyond_linear")
    gates, speeds = ask_all(audit), compute_speeds(audit)
    standings = judge_cells(gates, speeds, list(audit.request.cells))
    assert standings["2proc"].state != "proven"
    told = render_markdown(make_document(audit, gates, speeds, standings))
    # On a busy machine it may be withheld for another reason, but it is never called proven.
    assert not re.search(r"as fast[^;]*, proven", tell_verdict(audit, gates, speeds, standings))
    assert plausible_speed.NAME in told
