"""What is particular to instructions; what holds for every workload stands in test_workloads.py."""

import pytest
import torch

from training.workloads import instruction as workload


def test_packed_or_padded_the_loss_is_that_of_the_responses_by_hand(toy):
    told = toy.read(workload="instruction", packing=True)
    model, rows = workload.load_model(told.model_dir).eval(), workload.open_slice(told.segments[0].slice_dir)
    by_hand, likeliest = 0.0, 0
    with torch.no_grad():
        for index in range(20):
            tokens, given = torch.from_numpy(rows.row(index, 32).astype("int64")), int(rows.num_given[index])
            logits = model(tokens[None]).logits[0, given - 1 : -1].double()
            by_hand += float(-logits.log_softmax(1)[torch.arange(len(logits)), tokens[given:]].sum())
            likeliest += int((logits.argmax(1) == tokens[given:]).sum())
        found = workload.metrics(model, rows.collate(range(20), seq_len=32))
        assert float(found["loss"]) == pytest.approx(by_hand, rel=1e-6)
        assert float(found["correct_tokens"]) == likeliest
        workload.prepare(model, told)
        packed = workload.loss_sum(model, rows.collate(range(20), seq_len=32, is_packed=True))
        assert float(packed) == pytest.approx(by_hand, rel=1e-6)
