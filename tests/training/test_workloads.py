"""What holds for every workload: each file of training/workloads/, found by listing the folder, and one plugged in."""

import importlib
import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tasks.params.choices import list_file_names
from tests.emulator import WORKLOAD
from tests.tiny import make_tiny_workload
from tests.training.conftest import facts_of
from training.workloads import find_workload

WORKLOADS = [*list_file_names("training/workloads"), WORKLOAD]
SEQ_LEN = 32


@pytest.fixture(scope="module", params=WORKLOADS)
def tiny(request, tmp_path_factory):
    """Every workload, one after another: its smallest model, without dropout, and slices, the first one opened."""
    name, module = request.param, find_workload(request.param)
    model_dir, slices = make_tiny_workload(name, tmp_path_factory.mktemp(name))
    model, rows = module.load_model(model_dir).eval(), module.open_slice(slices[0])
    return SimpleNamespace(name=name, module=module, model_dir=model_dir, slices=slices, model=model, rows=rows)


def test_the_loss_of_rows_is_the_sum_of_each_alone_however_they_are_batched(tiny):
    model, rows = tiny.model, tiny.rows
    together = rows.collate(range(9), seq_len=SEQ_LEN)
    alone = [rows.collate([row], seq_len=SEQ_LEN) for row in range(9)]
    with torch.no_grad():
        expected = sum(float(tiny.module.loss_sum(model, part)) for part in alone)
        assert float(tiny.module.loss_sum(model, together)) == pytest.approx(expected, rel=1e-5)
        if hasattr(tiny.module, "metrics"):
            sums = {name: float(value) for name, value in tiny.module.metrics(model, together).items()}
            assert sums.pop("loss") == pytest.approx(expected, rel=1e-5)
            assert all(name.startswith("correct") and 0 <= sums[name] <= together.num_targets for name in sums)
    assert together.num_tokens == sum(part.num_tokens for part in alone)
    assert together.sample_num_targets.tolist() == rows.num_targets(SEQ_LEN)[:9].tolist()
    assert together.sample_num_tokens.tolist() == rows.num_tokens(SEQ_LEN)[:9].tolist()


def test_the_reference_computes_the_same_loss_row_by_row_on_its_own(tiny):
    if tiny.name == WORKLOAD or importlib.util.find_spec(f"tasks.equivalence.reference.{tiny.name}") is None:
        pytest.skip(f"{tiny.name} has no second computation, which the report says")
    reference = importlib.import_module(f"tasks.equivalence.reference.{tiny.name}")
    for seq_len in (SEQ_LEN, 12):
        rows = list(range(45))
        model = reference.load_model(tiny.model_dir, device="cpu").eval()
        total, count = reference.compute_rows_loss(model, reference.read_rows(tiny.slices[0], rows, seq_len=seq_len))
        batch = tiny.rows.collate(rows, seq_len=seq_len)
        with torch.no_grad():
            assert total == pytest.approx(float(tiny.module.loss_sum(tiny.model, batch)), rel=1e-5)
            again = reference.loss_sum(reference.load_model(tiny.model_dir, device="cpu"), batch, chunk_rows=2048)
        assert float(again) == pytest.approx(total, rel=1e-5)
        assert count == batch.num_targets


def test_the_totals_of_a_training_are_those_of_its_rows_and_steps(tiny, toy, train_here):
    config = toy.tell(workload=tiny.name, model=tiny.model_dir, slices=tiny.slices[:1])
    steps = [event for event in train_here(config) if event["event"] == "step"]
    facts = facts_of(config)
    assert facts["num_samples"] == 45
    assert facts["num_tokens"] == tiny.rows.num_tokens(SEQ_LEN).sum()
    assert facts.get("num_targets", facts["num_tokens"]) == tiny.rows.num_targets(SEQ_LEN).sum()
    weights = [step.get("num_targets", step["num_tokens"]) for step in steps]
    assert facts["loss"] == pytest.approx(np.average([step["loss"] for step in steps], weights=weights))
