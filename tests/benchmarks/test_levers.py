"""The benchmark of the levers: every one of them is something that params.yaml can say."""

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import levers_loss, levers_rank
from benchmarks.levers import LEVERS, Lever, comparison
from benchmarks.levers_attention import attention_arms
from tasks.params import Params
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import parsed
from training.config import LOSS_CHUNK_ROWS, TrainingConfig
from training.model.linear_loss import linear_cross_entropy
from training.probing.variants import list_micro_batches
from training.process.distributed import join_ranks


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: f"{lever.name} {lever.ranks} {lever.has_link}")
def test_each_side_of_a_lever_is_a_comparison_that_params_yaml_may_hold(lever: Lever) -> None:
    fields = {field.name for field in dataclasses.fields(TrainingConfig)}
    sides = [lever.without, lever.overrides]
    assert lever.lacks or sides[0] != sides[1]
    for side in sides:
        assert set(side) <= fields
        params = comparison().model_dump(mode="json")
        params["train"] |= {name: value for name, value in side.items() if name != "options"}
        params["cells"][str(lever.ranks)]["options"] = side.get("options", {})
        assert Params.model_validate(params).cells[str(lever.ranks)].world_size == lever.ranks


def test_the_loss_is_timed_on_whole_logits_and_in_each_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levers_loss, "ROWS", 64)
    monkeypatch.setattr(levers_loss, "CHUNKS", (16, 64))
    # Seconds of whole logits and of 16 and 64 rows, ours and torch's, by a clock that is looked at before and after
    # each; the order turns.
    takes = [6.0, 4.0, 5.0, 3.0, 12.0]
    spans = [span for turn in range(levers_loss.ROUNDS + 1) for span in (takes if turn % 2 else reversed(takes))]
    readings = itertools.accumulate(part for span in spans for part in (1.0, span))
    monkeypatch.setattr(levers_loss, "time", SimpleNamespace(perf_counter=lambda: next(readings)))
    found = levers_loss.measure_loss(256)
    assert found["gains"] == {
        "16 rows": pytest.approx([1.5] * 3),
        "16 rows by torch": pytest.approx([1.2] * 3),
        "64 rows": pytest.approx([2.0] * 3),
        "64 rows by torch": pytest.approx([0.5] * 3),
    }
    assert found["logits_mib"]["whole logits"] == found["logits_mib"]["64 rows"] == 0.0625
    assert found["logits_mib"]["16 rows"] == found["logits_mib"]["16 rows by torch"] == 0.015625


def test_torchs_own_chunks_have_the_same_loss_and_gradient_as_ours() -> None:
    hidden, weight = (torch.randn(rows, 12).requires_grad_() for rows in (40, 30))
    targets = torch.randint(30, (40,))
    found = []
    for loss_of in (linear_cross_entropy, levers_loss.of_torch):
        loss = loss_of(hidden, weight, targets, chunk_rows=16)
        loss.backward()
        found.append((loss.detach(), hidden.grad, weight.grad))
        hidden.grad = weight.grad = None
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


def test_the_loss_is_timed_in_the_chunks_that_a_training_takes_by_default() -> None:
    assert set(LOSS_CHUNK_ROWS.values()) < set(levers_loss.CHUNKS)
    assert max(levers_loss.CHUNKS) == levers_loss.ROWS


def test_attention_is_timed_on_the_same_sum_with_a_mask_and_document_by_document() -> None:
    arms, _ = attention_arms((3, 5, 8))
    found = {name: float(arm().detach()) for name, arm in arms.items()}
    assert found["document by document"] == pytest.approx(found["block-diagonal mask"], rel=1e-5)


def test_a_side_lacks_what_the_lever_is_and_computes_the_same_gradient(tmp_path: Path) -> None:
    slices = [make_slice(tmp_path / "0-45", num_rows=45)]
    config = parsed(make_config(tmp_path, make_tiny_model(tmp_path / "model"), slices), tmp_path)
    norms, positions, optimizers = {}, {}, {}
    with join_ranks(config) as ranks:
        for lacks in (None, "fused optimizer", "like lengths"):
            made = levers_rank._made({"overrides": {}, "link": None, "lacks": lacks}, config, ranks)
            _, positions[lacks] = levers_rank._block(made, ranks, [1, 2])
            parts = list_micro_batches(made, 3)
            num_targets = made.plan.step(3).num_targets
            result = made.strategy.train_step(parts, num_targets=num_targets, learning_rate=1e-3)
            norms[lacks] = float(result.grad_norm)
            optimizers[lacks] = made.strategy.replica._optimizer.defaults["fused"]
    assert norms == pytest.approx(dict.fromkeys(norms, norms[None]), rel=1e-5)
    assert optimizers == {None: True, "fused optimizer": None, "like lengths": True}
    assert positions["like lengths"] > positions[None] == positions["fused optimizer"]
