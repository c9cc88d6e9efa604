"""A defect of some steps alone, of which not all are looked at closely: it is named, or at least it is no pass."""

import json
import sys
from pathlib import Path

import pytest

from ddp_audit.asked import parse_request
from ddp_audit.checks import ask_all
from ddp_audit.evidence import list_first_pass
from ddp_audit.findings import global_batch, gradient_scale, labels, loss_weights, same_parameters
from ddp_audit.launched import Audit
from ddp_audit.observer.clocks import Clocks, ScriptLines
from ddp_audit.observer.record import Guard, Record
from ddp_audit.observer.timeline import Place, Timeline
from ddp_audit.rank_record import RankRecord
from tests.auditing.forked_scripts import ForkedScripts

_SCRIPT = Path(__file__).parent / "scripts" / "plain_ddp.py"
_WRAPPED = "wrapped = DistributedDataParallel(model) if"
_ALONE = f"""second = torch.optim.SGD([model.head.bias], lr=0.1)
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["head.bias"])
{_WRAPPED}"""
_BEGIN = "        began = time.perf_counter()\n"
_LATE = {
    "ranks that exchange less after the last sampled step": (
        {"logits = wrapped(": "logits = (model if epoch == 11 else wrapped)("},
        "--epochs 12",
        same_parameters.NAME,
        "silent_later",
        {"last": 64, "silent": 67},
    ),
    "a second optimizer, whose parameters are exchanged by nobody": (
        {
            _WRAPPED: _ALONE,
            "AdamW(model.parameters()": "AdamW([model.embedding.weight, model.head.weight]",
            "optimizer.step()": "optimizer.step()\n        second.step()",
            "optimizer.zero_grad()": "model.zero_grad()",
        },
        "",
        same_parameters.NAME,
        "averaged_at_times",
        {"step": 2},
    ),
    "the mask as labels in some steps": (
        {'labels = micro["labels"]': 'labels = micro["attention_mask"] if epoch else micro["labels"]'},
        "",
        labels.NAME,
        "mask_at_times",
        {"wrong": 4, "micro_batches": 20, "rank": 0, "step": 8},
    ),
    "a mean of means in one step": (
        {
            _BEGIN: f"{_BEGIN}        at = globals().get('at', 0) + 1\n",
            "(loss * world_size / num_targets)": "(loss * world_size / num_targets if at < 12 else "
            "loss / (labels[:, 1:] != -100).sum() / len(group))",
        },
        "",
        loss_weights.NAME,
        "means_of_means_at_times",
        {"wrong": 1, "steps_compared": 12, "step": 12},
    ),
    "a learning rate that falls on two ranks alone": (
        {"optimizer.step()": "optimizer.param_groups[0]['lr'] = 1e-2 / (world_size if epoch else 1); optimizer.step()"},
        "",
        global_batch.NAME,
        "other_rates",
        {"other": "6 of 12 steps, first of step 7"},
    ),
}
_REGRESSION = "nn.functional.mse_loss(network(batch), target)"
_OTHER_GRADIENT = {
    "sums, of which DDP takes the mean": (
        "regression", {_REGRESSION: f"{_REGRESSION[:-1]}, reduction='sum')"}, "other_scale", "is 0.50 times as long"
    ),
    "divided by the number of ranks, as DDP does": (
        "regression", {_REGRESSION: f"{_REGRESSION} / world_size"}, "other_scale", "is 0.50 times as long"
    ),
    "multiplied by the number of ranks": (
        "regression", {_REGRESSION: f"{_REGRESSION} * world_size"}, "other_scale",
        "unless average_tokens_across_devices is False",
    ),
    "targets of other rows": (
        "regression",
        {"self.waves[at, 1:, None]": "self.waves[(at + int(os.environ['WORLD_SIZE'])) % 64, 1:, None]"},
        "other_gradient",
        "its gradient is another one",
    ),
    "sums, of rows in another order": (
        "accelerated",
        {
            "batch[:, 1:].reshape(-1))": "batch[:, 1:].reshape(-1), reduction='sum')",
            "accelerator.clip_grad_norm_(model.parameters(), 1.0)": "pass",
        },
        "other_scale",
        "its gradient is 0.",
    ),
}  # fmt: skip
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


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_LATE))
def test_a_defect_of_some_steps_is_no_pass(forked: ForkedScripts, tmp_path: Path, name: str) -> None:
    edits, arguments, question, code, numbers = _LATE[name]
    text = _SCRIPT.read_text()
    for right, wrong in edits.items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    (tmp_path / "plain_ddp.py").write_text(text)
    request = parse_request({"SCRIPT": f"plain_ddp.py {arguments}", "CELLS": "1,2", "FOLDER": str(tmp_path)})
    audit = Audit(request)
    for cell, world_size in request.cells.items():
        launched = forked.launch(request.words_for(cell), cell=cell, world_size=world_size, folder=tmp_path)
        assert launched.exit_code == 0, launched.ending
        audit.launches[cell] = [launched]
    found = next(gate for gate in ask_all(audit) if gate.name == question).findings["2proc"]
    assert (found.verdict, found.code, found.numbers | numbers) == ("not checked", code, found.numbers)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_OTHER_GRADIENT))
def test_a_gradient_that_is_not_the_baselines_is_no_pass(forked: ForkedScripts, tmp_path: Path, name: str) -> None:
    script, edits, code, says = _OTHER_GRADIENT[name]
    text = (_SCRIPT.parent / f"{script}.py").read_text()
    for right, wrong in edits.items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    (tmp_path / "script.py").write_text(text)
    request = parse_request({"SCRIPT": "script.py", "CELLS": "1,2", "FOLDER": str(tmp_path)})
    audit = Audit(request)
    for cell, world_size in request.cells.items():
        words, is_alone = request.words_for(cell), script == "accelerated" and world_size == 1
        launched = forked.launch(words, cell=cell, world_size=world_size, folder=tmp_path, is_alone=is_alone)
        assert launched.exit_code == 0, launched.ending
        audit.launches[cell] = [launched]
    found = gradient_scale.find(audit, "2proc")
    assert found is not None
    assert (found.verdict, found.code) == ("failed" if code == "other_scale" else "not checked", code)
    assert says in found.compared


@pytest.mark.slow
def test_models_that_learn_in_turns_are_both_looked_at_to_the_end(forked: ForkedScripts, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_IN_TURNS)
    steps = forked.launch(["script.py"], cell="1proc", world_size=1, folder=tmp_path).ranks[0].steps
    assert len(steps) == 40
    # Of those that judge, the rows are known; a model that is frozen in every second step is not lost.
    assert all(step["micros"][0].get("ids") for step in steps[::2])
    assert {step["micros"][0]["module"] for step in steps[2::2]} == {steps[0]["micros"][0]["module"]}
    # Every step that is sampled after the first four is an even one, at which the other one learns.
    assert [len(step["weights"]["digests"]) for step in steps if "weights" in step] == [2, 4, 4, 4, 4, 4, 4]


@pytest.mark.slow
def test_batches_that_are_gathered_before_the_first_is_learned_from_keep_their_rows(
    forked: ForkedScripts, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(_GATHERED)
    (step,) = forked.launch(["script.py"], cell="1proc", world_size=1, folder=tmp_path).ranks[0].steps
    assert [index for micro in step["micros"] for index in micro["ids"]] == list(range(80))


def test_a_pass_whose_last_steps_were_never_written_is_not_whole() -> None:
    passes = {"pass": [{"loader": 0, "is_over": over, "step": 6 * over} for over in (False, True)]}
    steps = [{"step": number, "micros": [{"loader": 0, "ids": [number]}]} for number in range(1, 7)]
    assert list_first_pass(RankRecord(0, steps=steps, lines=passes)) == (steps, True)
    assert list_first_pass(RankRecord(0, steps=steps[:5], lines=passes)) == (steps[:5], False)


def test_a_clock_is_followed_however_often_it_is_read(tmp_path: Path) -> None:
    record = Record(str(tmp_path), rank=0)
    clocks = Clocks(record, Guard(record), Timeline(Place(None)), ScriptLines())

    def read(value: float, held: float) -> None:
        # What the frame holds is what is looked at.
        assert held < value
        clocks._see(value, sys._getframe())

    num_steps = 15_000
    for number in range(num_steps):
        clocks.count_steps = lambda number=number: number  # type: ignore[misc]
        read(number + 0.25, held=-1.0)
        clocks.count_steps = lambda number=number: number + 1  # type: ignore[misc]
        read(number + 0.5, held=number + 0.25)
    # The whole run, too, is timed by what was read long ago.
    read(1e6, held=0.25)
    clocks.finish()
    last = json.loads((tmp_path / "rank-0.jsonl").read_text().splitlines()[-1])
    assert (last["number"], last["num_steps"]) == (num_steps + 1, 2 * num_steps)
