"""Texts that are classified, several in one sequence: each has the class scores that it has alone, and its gradient."""

import pytest
import torch

from tests.training.conftest import relative_l2
from tests.training.models import build
from training.process.failure import UnfitModelError
from training.workloads import sequence_classification as workload

_TOLD = {"workload": "sequence_classification", "packing": True}


def _load(kind, toy, *, packs):
    """Return a model as it comes, or prepared for packs."""
    told = toy.read(model=kind, **_TOLD)
    model = workload.load_model(told.model_dir).eval()
    model.config.pad_token_id = 3
    if packs:
        workload.prepare(model, told)
    return model


def _gradients(model, parts):
    loss = torch.stack([workload.loss_sum(model, part) for part in parts]).sum()
    loss.backward()
    return float(loss.detach()), {name: part.grad for name, part in model.named_parameters() if part.grad is not None}


@pytest.mark.parametrize("kind", ["bert", "modernbert, first token", "modernbert, mean", "decoder that classifies"])
def test_each_text_has_the_scores_and_the_gradient_that_it_has_alone(kind, toy):
    plain, packing = (_load(kind, toy, packs=packs) for packs in (False, True))
    source = workload.open_slice(toy.rows("sequence_classification")[0])
    # One length several times in a row, as long as a row may be, and others.
    rows = [3, 7, 7, 7, 12, 20, 20, 5, 40]
    pack = source.collate(rows, seq_len=32, is_packed=True)
    alone = [source.collate([row], seq_len=32) for row in rows]
    with torch.no_grad():
        scores = workload._compute_batch_logits(packing, pack)
        expected = torch.cat([workload._compute_batch_logits(plain, part) for part in alone])
    assert torch.allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert (expected - expected.roll(1, 0)).abs().max() > 1e-2, "texts that nothing tells apart show nothing"
    found, wanted = _gradients(packing, [pack]), _gradients(plain, alone)
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    assert relative_l2(found[1], wanted[1]) < 2e-6


@pytest.mark.parametrize("kind", ["roberta", "bart", "gemma2"])
def test_a_model_that_cannot_keep_texts_apart_or_caps_its_scores_is_refused(kind, toy):
    model, told = build(kind, classifies=True), toy.read(model="bert", **_TOLD)
    assert not workload.can_pack(model, told)
    with pytest.raises(UnfitModelError, match=r"cannot: .* use packing: false"):
        workload.prepare(model, told)
