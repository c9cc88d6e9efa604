"""What is particular to instructions; what holds for every workload stands in test_workloads.py."""

import pytest
import torch

from training.workloads import instruction as workload


def test_of_responses_alone_tokens_are_counted_and_packs_have_the_loss_of_padded_rows(toy):
    told = toy.read(workload="instruction", packing=True)
    model, rows = workload.load_model(told.model_dir).eval(), workload.open_slice(told.segments[0].slice_dir)
    likeliest = 0
    with torch.no_grad():
        for index in range(20):
            tokens, given = torch.from_numpy(rows.row(index, 32).astype("int64")), int(rows.num_given[index])
            logits = model(tokens[None]).logits[0, given - 1 : -1]
            likeliest += int((logits.argmax(1) == tokens[given:]).sum())
        found = workload.metrics(model, rows.collate(range(20), seq_len=32))
        assert float(found["correct_tokens"]) == likeliest
        workload.prepare(model, told)
        packed = workload.loss_sum(model, rows.collate(range(20), seq_len=32, is_packed=True))
        assert float(packed) == pytest.approx(float(found["loss"]), rel=1e-6)
