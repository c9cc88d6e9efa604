"""What holds for every workload: each file of training/workloads/, found by listing the folder, and one plugged in."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.params.choices import list_file_names
from tests.emulator import WORKLOAD
from tests.tiny import make_config, make_tiny_workload
from tests.training.conftest import (
    are_bitwise_equal,
    events_in,
    facts_of,
    parsed,
    relative_l2,
    start_ranks,
    weights_at_end,
)
from training.data.plan import make_micro_batches, make_segment_plan
from training.data.rows import Rows
from training.process.failure import StoppedError
from training.workloads import find_workload

WORKLOADS = [*list_file_names("training/workloads"), WORKLOAD]
SEQ_LEN = 32


class Tiny:
    """A workload with its smallest model and slices."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.module: Any = find_workload(name)
        self.model_dir, self.slices = make_tiny_workload(name, root)

    @property
    def rows(self) -> Rows:
        """The first slice, opened."""
        rows: Rows = self.module.open_slice(self.slices[0])
        return rows

    def model(self) -> Any:
        """Return the base model, without dropout."""
        return self.module.load_model(self.model_dir).eval()

    def config(self, work: Path, **changes: Any) -> dict[str, Any]:
        """Return what a training process is told."""
        return make_config(work, self.model_dir, self.slices, **{"workload": self.name, "seq_len": SEQ_LEN, **changes})


@pytest.fixture(scope="module", params=WORKLOADS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Every workload, one after another."""
    return Tiny(request.param, tmp_path_factory.mktemp(request.param))


def test_it_offers_what_the_seam_asks_for(tiny: Tiny) -> None:
    for name in ("UNIT", "open_slice", "make_dummy_micro_batch", "load_model", "has_dropout", "loss_sum"):
        assert hasattr(tiny.module, name), name
    assert tiny.module.UNIT in ("token", "image")
    assert not getattr(tiny.module, "HAS_LABELS", False) or hasattr(tiny.module, "metrics")


def test_the_loss_of_rows_is_the_sum_of_each_alone_however_they_are_batched(tiny: Tiny) -> None:
    model, rows = tiny.model(), tiny.rows
    together = rows.collate(range(9), seq_len=SEQ_LEN)
    alone = [rows.collate([row], seq_len=SEQ_LEN) for row in range(9)]
    with torch.no_grad():
        expected = sum(float(tiny.module.loss_sum(model, part)) for part in alone)
        assert float(tiny.module.loss_sum(model, together)) == pytest.approx(expected, rel=1e-5)
    assert together.num_tokens == sum(part.num_tokens for part in alone)
    assert together.sample_num_targets.tolist() == rows.num_targets(SEQ_LEN)[:9].tolist()
    assert together.sample_num_tokens.tolist() == rows.num_tokens(SEQ_LEN)[:9].tolist()


def test_a_dummy_weighs_nothing_and_gives_every_parameter_a_gradient_of_zero(tiny: Tiny) -> None:
    model, dummy = tiny.module.load_model(tiny.model_dir), tiny.module.make_dummy_micro_batch(SEQ_LEN)
    loss = tiny.module.loss_sum(model, dummy)
    loss.backward()
    assert (float(loss.detach()), dummy.num_tokens, dummy.num_targets, dummy.num_samples) == (0.0, 0, 0, 0)
    for name, part in model.named_parameters():
        assert part.grad is not None, name
        assert float(part.grad.abs().sum()) == 0.0, name


def test_any_number_of_ranks_learns_from_what_the_plan_says(tiny: Tiny, tmp_path: Path) -> None:
    config, rows = parsed(tiny.config(tmp_path / "work"), tmp_path), tiny.rows
    plan = make_segment_plan(rows, config, config.segments[0])
    for world_size in (1, 3):
        for number in range(1, plan.num_steps + 1):
            step = plan.step(number)
            parts = [
                part
                for rank in range(world_size)
                for part in make_micro_batches(
                    rows, step, rank=rank, world_size=world_size, seq_len=SEQ_LEN, seed=(1, number)
                )
            ]
            assert sum(part.num_tokens for part in parts) == step.num_tokens
            assert sum(part.num_targets for part in parts) == step.num_targets
    assert (
        sum(plan.step(number).num_targets for number in range(1, plan.num_steps + 1)) == rows.num_targets(SEQ_LEN).sum()
    )


def test_what_it_measures_agrees_with_the_loss(tiny: Tiny) -> None:
    if not hasattr(tiny.module, "metrics"):
        pytest.skip(f"{tiny.name} measures nothing beside the loss")
    model, batch = tiny.model(), tiny.rows.collate(range(20), seq_len=SEQ_LEN)
    with torch.no_grad():
        sums = tiny.module.metrics(model, batch)
        assert float(sums.pop("loss")) == pytest.approx(float(tiny.module.loss_sum(model, batch)), rel=1e-5)
    assert all(name.startswith("correct") and 0 <= float(value) <= batch.num_targets for name, value in sums.items())


def test_the_reference_computes_the_same_loss_row_by_row_on_its_own(tiny: Tiny) -> None:
    if tiny.name == WORKLOAD or importlib.util.find_spec(f"tasks.equivalence.reference.{tiny.name}") is None:
        pytest.skip(f"{tiny.name} has no second computation, which the report says")
    reference: Any = importlib.import_module(f"tasks.equivalence.reference.{tiny.name}")
    for seq_len in (SEQ_LEN, 12):
        rows = list(range(45))
        total, count = reference.compute_rows_loss(
            tiny.model_dir, reference.read_rows(tiny.slices[0], rows, seq_len=seq_len), device="cpu"
        )
        batch = tiny.rows.collate(rows, seq_len=seq_len)
        with torch.no_grad():
            assert total == pytest.approx(float(tiny.module.loss_sum(tiny.model(), batch)), rel=1e-5)
            again = reference.loss_sum(reference.load_model(tiny.model_dir, device="cpu"), batch, chunk_rows=2048)
        assert float(again) == pytest.approx(total, rel=1e-5)
        assert count == batch.num_targets


Train = Callable[..., list[dict[str, Any]]]


def test_a_training_that_was_stopped_ends_with_the_same_bits(tiny: Tiny, train_here: Train, tmp_path: Path) -> None:
    whole, stopped = tiny.config(tmp_path / "whole"), tiny.config(tmp_path / "stopped")
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


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_two_ranks_train_what_one_trains(tiny: Tiny, train_here: Train, tmp_path: Path) -> None:
    one = tiny.config(tmp_path / "one", learning_rate=1e-3)
    two = tiny.config(
        tmp_path / "two", learning_rate=1e-3, strategy="ddp", world_size=2, cell="2proc", oversubscribe=True
    )
    ranks = start_ranks(two)
    train_here(one)
    assert ranks.wait(120) == 0, (tmp_path / "two" / "output.log").read_text()[-2000:]
    assert relative_l2(weights_at_end(two), weights_at_end(one)) < 2e-6
    losses = [
        [event["loss"] for event in events_in(Path(config["work_dir"]) / "steps.jsonl") if event["event"] == "step"]
        for config in (one, two)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
