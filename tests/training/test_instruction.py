"""What is particular to instructions; what holds for every workload stands in test_workloads.py."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.equivalence.reference import instruction as reference
from tests.tiny import make_config, make_slice, make_tiny_model, write_slice
from tests.training.conftest import parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.data.batches import IGNORED_LABEL
from training.workloads import causal_lm
from training.workloads import instruction as workload


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and a slice."""
    root = tmp_path_factory.mktemp("instructions")
    make_tiny_model(root / "model", num_layers=4)
    make_slice(root / "rows", num_rows=45, min_len=2, longest_prompt=40)
    return root


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
    assert (packed.num_tokens, packed.num_targets) == (12, 7)


def test_a_row_that_is_cut_within_its_prompt_weighs_nothing(tmp_path: Path) -> None:
    write_slice(tmp_path / "rows", [[1, 2, 3, 4, 5, 127], [4, 5, 127]], prompts=[4, 1])
    rows = workload.open_slice(tmp_path / "rows")
    for is_packed in (False, True):
        batch = rows.collate([0, 1], seq_len=4, is_packed=is_packed)
        assert batch.sample_num_targets.tolist() == [0, 2]
        assert batch.labels[batch.labels != IGNORED_LABEL].tolist() == [5, 127]


def test_packed_or_padded_the_loss_is_that_of_the_responses_by_hand(folder: Path, tmp_path: Path) -> None:
    model, rows = workload.load_model(folder / "model").eval(), workload.open_slice(folder / "rows")
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
        config = make_config(
            tmp_path / "work", folder / "model", [folder / "rows"], workload="instruction", packing=True
        )
        workload.prepare(model, parsed(config, tmp_path))
        packed = workload.loss_sum(model, rows.collate(range(20), seq_len=32, is_packed=True))
        assert float(packed) == pytest.approx(by_hand, rel=1e-6)


def test_the_second_computation_sees_that_a_prompt_was_learned_too(folder: Path) -> None:
    rows = workload.open_slice(folder / "rows")
    assert rows.num_given is not None
    told = reference.compute_rows_loss(
        folder / "model", reference.read_rows(folder / "rows", range(20), seq_len=32), device="cpu"
    )
    wrong = replace(rows, num_given=np.ones_like(rows.num_given)).collate(range(20), seq_len=32)
    with torch.no_grad():
        loss = float(causal_lm.loss_sum(workload.load_model(folder / "model").eval(), wrong))
    assert wrong.num_targets > 1.5 * told[1]
    assert loss > 1.5 * told[0]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pipeline", "fsdp2", "zero1"])
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_every_strategy_learns_on_two_ranks_what_one_learns(
    strategy: str, packing: bool, folder: Path, ranks: ForkedRanks, tmp_path: Path
) -> None:
    def train(name: str, world_size: int) -> Any:
        asked = {"workload": "instruction", "strategy": name, "world_size": world_size, "packing": packing}
        config = make_config(
            tmp_path / name, folder / "model", [folder / "rows"], cell=name, learning_rate=1e-3, **asked
        )  # fmt: skip
        return weights_at_end(ranks.train(config))

    one, two = train("single", 1), train(strategy, 2)
    assert list(two) == list(one)
    assert relative_l2(two, one) < 2e-6
