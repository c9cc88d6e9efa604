"""What is particular to instructions; what holds for every workload stands in test_workloads.py."""

from pathlib import Path

import pytest
import torch

from tests.tiny import write_slice
from tests.training.conftest import Toy
from training.data.batches import IGNORED_LABEL
from training.workloads import instruction as workload


def test_the_labels_are_the_response_and_its_end_wherever_a_row_is_cut(tmp_path: Path) -> None:
    write_slice(tmp_path / "rows", [[1, 2, 3, 8, 9, 127], [4, 5, 127], [6, 6, 6, 6, 7, 127]], prompts=[3, 1, 4])
    rows, none = workload.open_slice(tmp_path / "rows"), IGNORED_LABEL
    batch = rows.collate([0, 1, 2], seq_len=5)
    assert batch.labels.tolist() == [
        [none, none, 8, 9, none],
        [5, 127, none, none, none],
        [none, none, none, 7, none],
    ]
    assert batch.sample_num_tokens.tolist() == [4, 2, 4]
    assert batch.sample_num_targets.tolist() == rows.num_targets(5).tolist() == [2, 2, 1]
    packed = rows.collate([0, 1, 2], seq_len=16, is_packed=True)
    assert packed.labels.tolist() == [[none, none, 8, 9, 127, none, 5, 127, none, none, none, none, 7, 127, none, none]]
    assert packed.input_ids[0, packed.label_places].tolist() == [3, 8, 9, 4, 5, 6, 7]
    # Cut within its prompt, a row weighs nothing.
    for is_packed in (False, True):
        assert rows.collate([0, 1], seq_len=3, is_packed=is_packed).sample_num_targets.tolist() == [0, 2]


def test_packed_or_padded_the_loss_is_that_of_the_responses_by_hand(toy: Toy) -> None:
    told = toy.read(workload="instruction", packing=True)
    model, rows = workload.load_model(told.model_dir).eval(), workload.open_slice(told.segments[0].slice_dir)
    assert rows.num_given is not None
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
