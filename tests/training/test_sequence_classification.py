"""What is particular to classifying texts; what holds for every workload stands in test_workloads.py."""

import pytest
import torch

from tests.training.conftest import relative_l2, take_gradient
from tests.training.models import build
from training.process.failure import UnfitModelError
from training.workloads import sequence_classification as workload

_TOLD = {"workload": "sequence_classification", "model": "bert"}
_PACKED = {"workload": "sequence_classification", "packing": True}


def test_accuracy_counts_the_rows_whose_likeliest_class_is_theirs(toy):
    told = toy.read(**_TOLD)
    model, rows = workload.load_model(told.model_dir).eval(), workload.open_slice(told.segments[0].slice_dir)
    with torch.no_grad():
        texts = (torch.from_numpy(rows.row(row, 32).astype("int64")) for row in range(20))
        likeliest = [int(torch.argmax(model(text[None]).logits)) for text in texts]
        found = float(workload.metrics(model, rows.collate(range(20), seq_len=32))["correct"])
    assert found == sum(one == int(label) for one, label in zip(likeliest, rows.labels, strict=False))


def test_a_decoder_that_classifies_finds_the_end_of_each_padded_text(toy):
    model = workload.load_model(toy.models("decoder that classifies")).eval()
    rows = workload.open_slice(toy.rows("sequence_classification")[0])
    model.config.pad_token_id = 126
    with torch.no_grad():
        alone = sum(float(workload.loss_sum(model, rows.collate([row], seq_len=32))) for row in range(6))
        assert float(workload.loss_sum(model, rows.collate(range(6), seq_len=32))) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_longest_text_that_a_model_takes_is_found_by_trying(kind, toy):
    model = workload.load_model(toy.models("bert")) if kind == "bert" else build(kind, classifies=True)
    workload.prepare(model, toy.read(**_TOLD, seq_len=64))
    with pytest.raises(UnfitModelError, match="use fewer tokens"):
        workload.prepare(model, toy.read(**_TOLD, seq_len=65))


def _load(kind, toy, *, packs):
    """Return a model as it comes, or prepared for packs."""
    told = toy.read(model=kind, **_PACKED)
    model = workload.load_model(told.model_dir).eval()
    model.config.pad_token_id = 3
    if packs:
        workload.prepare(model, told)
    return model


@pytest.mark.parametrize("kind", ["bert", "modernbert, first token", "modernbert, mean", "decoder that classifies"])
def test_texts_have_the_loss_and_the_gradient_that_they_have_alone(kind, toy):
    plain, packing = (_load(kind, toy, packs=packs) for packs in (False, True))
    source = workload.open_slice(toy.rows("sequence_classification")[0])
    # One length several times in a row, as long as a row may be, and others.
    rows = [3, 7, 7, 7, 12, 20, 20, 5, 40]
    alone = [source.collate([row], seq_len=32) for row in rows]
    with torch.no_grad():
        scores = torch.cat([workload._compute_batch_logits(plain, part) for part in alone])
    assert (scores - scores.roll(1, 0)).abs().max() > 1e-2, "texts that nothing tells apart show nothing"
    found = take_gradient(workload, packing, [source.collate(rows, seq_len=32, is_packed=True)])
    wanted = take_gradient(workload, plain, alone)
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    assert relative_l2(found[1], wanted[1]) < 2e-6


@pytest.mark.parametrize("kind", ["roberta", "gemma2"])
def test_a_model_that_cannot_keep_texts_apart_or_caps_its_scores_is_refused(kind, toy):
    model, told = build(kind, classifies=True), toy.read(model="bert", **_PACKED)
    assert not workload.can_pack(model, told)
    with pytest.raises(UnfitModelError, match=r"cannot: .* use packing: false"):
        workload.prepare(model, told)
