"""What is particular to classifying texts; what holds for every workload stands in test_workloads.py."""

import pytest
import torch

from tests.training.models import build
from training.process.failure import UnfitModelError
from training.workloads import sequence_classification as workload

_TOLD = {"workload": "sequence_classification", "model": "bert"}


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


@pytest.mark.parametrize("kind", ["bert", "roberta", "bart"])
def test_the_longest_text_that_a_model_takes_is_found_by_trying(kind, toy):
    model = workload.load_model(toy.models("bert")) if kind == "bert" else build(kind, classifies=True)
    workload.prepare(model, toy.read(**_TOLD, seq_len=64))
    with pytest.raises(UnfitModelError, match="use fewer tokens"):
        workload.prepare(model, toy.read(**_TOLD, seq_len=65))
