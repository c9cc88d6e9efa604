"""What holds for every workload: each file of training/workloads/, found by listing the folder, and one plugged in."""

import importlib
import importlib.util

import numpy as np
import pytest
import torch

from tasks.params.choices import list_file_names
from tests.emulator import WORKLOAD
from tests.tiny import make_tiny_workload
from tests.training.conftest import are_bitwise_equal, facts_of, weights_at_end
from training.process.failure import StoppedError
from training.workloads import find_workload

WORKLOADS = [*list_file_names("training/workloads"), WORKLOAD]
SEQ_LEN = 32


class Tiny:
    """A workload with its smallest model and slices."""

    def __init__(self, name, root):
        self.name = name
        self.module = find_workload(name)
        self.model_dir, self.slices = make_tiny_workload(name, root)
        self.told = {"workload": name, "model": self.model_dir, "slices": self.slices, "seq_len": SEQ_LEN}

    @property
    def rows(self):
        """The first slice, opened."""
        return self.module.open_slice(self.slices[0])

    def model(self):
        """Return the base model, without dropout."""
        return self.module.load_model(self.model_dir).eval()


@pytest.fixture(scope="module", params=WORKLOADS)
def tiny(request, tmp_path_factory):
    """Every workload, one after another."""
    return Tiny(request.param, tmp_path_factory.mktemp(request.param))


def test_the_loss_of_rows_is_the_sum_of_each_alone_however_they_are_batched(tiny):
    model, rows = tiny.model(), tiny.rows
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


def test_a_dummy_weighs_nothing_and_gives_every_parameter_a_gradient_of_zero(tiny):
    model, dummy = tiny.module.load_model(tiny.model_dir), tiny.module.make_dummy_micro_batch(SEQ_LEN)
    loss = tiny.module.loss_sum(model, dummy)
    loss.backward()
    assert (float(loss.detach()), dummy.num_tokens, dummy.num_targets, dummy.num_samples) == (0.0, 0, 0, 0)
    for name, part in model.named_parameters():
        assert part.grad is not None, name
        assert float(part.grad.abs().sum()) == 0.0, name


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
            assert total == pytest.approx(float(tiny.module.loss_sum(tiny.model(), batch)), rel=1e-5)
            again = reference.loss_sum(reference.load_model(tiny.model_dir, device="cpu"), batch, chunk_rows=2048)
        assert float(again) == pytest.approx(total, rel=1e-5)
        assert count == batch.num_targets


def test_a_training_that_was_stopped_ends_with_the_same_bits(tiny, toy, train_here):
    whole, stopped = toy.tell("whole", **tiny.told), toy.tell("stopped", **tiny.told)
    events = train_here(whole)
    with pytest.raises(StoppedError):
        train_here(stopped, stop_after_step=3)
    train_here(stopped)
    assert are_bitwise_equal(weights_at_end(stopped), weights_at_end(whole))
    facts = facts_of(stopped, 0)
    assert (facts["num_resumes"], facts["num_samples"]) == (1, 45)
    assert facts["num_tokens"] == tiny.rows.num_tokens(SEQ_LEN).sum()
    assert facts.get("num_targets", facts["num_tokens"]) == tiny.rows.num_targets(SEQ_LEN).sum()
    steps = [event for event in events if event["event"] == "step"]
    weights = [step.get("num_targets", step["num_tokens"]) for step in steps[:6]]
    assert facts["loss"] == pytest.approx(np.average([step["loss"] for step in steps[:6]], weights=weights))
