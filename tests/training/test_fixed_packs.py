"""Packs of one length: the same rows and the same update in shapes that never change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.utils
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.equivalence.orders import make_rank_order
from tasks.equivalence.reference.update import OneProcess
from tests.ledgers import read_ledger
from tests.tiny import make_config, make_slice, make_tiny_model, write_slice
from tests.training.conftest import are_bitwise_equal, facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.data.batches import MicroBatch, make_dummy_micro_batch, open_slice
from training.data.pack_shape import PackShape, pad_pack
from training.data.plan import make_micro_batches, make_segment_plan, plan_segment
from training.process.failure import UnfitModelError
from training.workloads import causal_lm


def test_what_is_added_are_documents_of_padding_no_longer_than_a_row(tmp_path: Path) -> None:
    source = open_slice(write_slice(tmp_path, [[5, 6, 7], [9], [1, 2]]))
    packed = source.collate([0, 2, 1], seq_len=3, is_packed=True)
    padded = pad_pack(packed, PackShape(num_positions=16, num_documents=9, longest_document=3))
    assert padded.input_ids.tolist() == [[5, 6, 7, 1, 2, 9, *[0] * 10]]
    assert padded.labels.tolist() == [[6, 7, -100, 2, *[-100] * 12]]
    assert padded.label_places.tolist() == packed.label_places.tolist()
    assert padded.num_padding_tokens == 10
    assert padded.num_tokens == packed.num_tokens
    assert padded.documents is not None
    assert padded.documents.lengths == (3, 2, 1, 3, 3, 3, 1)
    assert padded.documents.boundaries.tolist() == [0, 3, 5, 6, 9, 12, 15, 16, 16, 16]
    assert padded.documents.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]]
    assert padded.documents.longest == 3
    dummy = pad_pack(make_dummy_micro_batch(3), PackShape(num_positions=16, num_documents=9, longest_document=3))
    assert _shapes(dummy) == _shapes(padded)
    assert (dummy.num_tokens, dummy.num_padding_tokens, len(dummy.label_places)) == (0, 0, 0)


def _shapes(part: MicroBatch) -> list[Any]:
    """Return all that a compiler would see of it."""
    documents = part.documents
    assert documents is not None
    tensors = (part.input_ids, part.labels, documents.boundaries, documents.position_ids)
    return [*(tuple(tensor.shape) for tensor in tensors), documents.longest]


@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=120),
    micro_batch_size=st.integers(1, 6),
    num_parts=st.integers(1, 5),
    world_size=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_all_packs_of_a_segment_have_one_shape_and_the_rows_that_they_had(
    lengths: list[int], micro_batch_size: int, num_parts: int, world_size: int, tmp_path_factory: Any
) -> None:
    folder = write_slice(tmp_path_factory.mktemp("slice"), [[1] * length for length in lengths])
    source, sizes = open_slice(folder), np.array(lengths)
    fixed, plain = (
        plan_segment(
            sizes, seed=3, epoch=1, rows=f"0-{len(sizes)}", global_batch_size=micro_batch_size * num_parts,
            micro_batch_size=micro_batch_size, is_packed=True, has_fixed_packs=is_fixed,
        )
        for is_fixed in (True, False)
    )  # fmt: skip
    found, most = [], 0
    for number in range(1, fixed.num_steps + 1):
        pairs = [
            [
                part
                for rank in range(world_size)
                for part in make_micro_batches(
                    source, plan.step(number), rank=rank, world_size=world_size, seq_len=64, seed=(1, number)
                )
            ]
            for plan in (fixed, plain)
        ]
        for padded, packed in zip(*pairs, strict=True):
            found.append(_shapes(padded))
            most = max(most, int(sizes[packed.row_ids].sum()))
            assert padded.row_ids.tolist() == packed.row_ids.tolist()
            assert padded.dropout_seed == packed.dropout_seed
            labels = [part.labels.flatten()[part.label_places].tolist() for part in (padded, packed)]
            assert labels[0] == labels[1]
            assert padded.documents is not None
            assert sum(padded.documents.lengths) == padded.num_positions
            assert max(padded.documents.lengths) <= max(1, *lengths)
    assert len({str(shapes) for shapes in found}) == 1
    # An empty row takes a place when rows are shared out.
    assert found[0][0][1] - most <= max(8, most / 16) + lengths.count(0)


def test_a_training_on_them_is_that_on_packs_as_long_as_their_rows(
    tiny_model: Path, slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    configs = [
        make_config(tmp_path / str(packing), tiny_model, slices, packing=packing, micro_batch_size=4)
        for packing in (True, "fixed")
    ]
    steps = [[event for event in train_here(config) if event["event"] == "step"] for config in configs]
    for plain, fixed in zip(*steps, strict=True):
        assert (fixed["num_tokens"], fixed["num_samples"]) == (plain["num_tokens"], plain["num_samples"])
        assert fixed["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert relative_l2(weights_at_end(configs[1]), weights_at_end(configs[0])) < 2e-6
    plain, fixed = (sum(step["num_tokens"] + step["num_padding_tokens"] for step in run) for run in steps)
    assert plain < fixed, "the padding is counted"
    ledgers = []
    for config in configs:
        ledger = read_ledger(Path(config["work_dir"]) / "segments" / config["segments"][0]["fingerprint"])
        ledgers.append(sorted(zip(ledger["step"].tolist(), ledger["row_id"].tolist(), strict=True)))
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize("changes", [{}, {"dropout": 0.1}], ids=["one operator", "document by document"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_process_with_code_of_its_own_computes_the_same_updates(
    precision: str, changes: dict[str, Any], slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    model = make_tiny_model(tmp_path / "model", **changes)
    config = make_config(
        tmp_path / "work", model, slices[:1], packing="fixed", precision=precision, loss_chunk_rows=16,
        micro_batch_size=4,
    )  # fmt: skip
    train_here(config)
    settings = parsed(config, tmp_path)
    expected = OneProcess(settings).update(make_rank_order(settings), on_step=lambda: None)
    assert relative_l2(weights_at_end(config), expected.weights) < 1e-6


def test_the_operator_gives_the_numbers_that_documents_give_one_by_one(tiny_model: Path, tmp_path: Path) -> None:
    source = open_slice(make_slice(tmp_path / "slice", num_rows=12, min_len=2))
    config = parsed(make_config(tmp_path, tiny_model, [tmp_path / "slice"], packing="fixed"), tmp_path)
    model = causal_lm.load_model(tiny_model)
    causal_lm.prepare(model, config)
    part = next(
        make_micro_batches(
            source, make_segment_plan(source, config, config.segments[0]).step(1), rank=0, world_size=1, seq_len=32,
            seed=(1, 1),
        )
    )  # fmt: skip
    assert part.documents is not None
    found = []
    for is_fixed in (True, False):
        documents = type(part.documents)(**{**vars(part.documents), "is_fixed": is_fixed})
        asked = causal_lm._make_attention_inputs(model, MicroBatch(**{**vars(part), "documents": documents}))
        assert ("document_boundaries" in asked) is is_fixed
        model.zero_grad()
        loss = causal_lm.loss_sum(model, MicroBatch(**{**vars(part), "documents": documents}))
        loss.backward()
        found.append({name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None})
    assert are_bitwise_equal(*found)


@pytest.mark.slow
def test_layers_are_compiled_once_for_all_packs_and_dummies(
    tiny_model: Path, slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    configs = [
        # The last step has too few rows for as many packs.
        make_config(tmp_path / str(is_compiled), tiny_model, slices[:1], packing="fixed", compile=is_compiled)
        for is_compiled in (False, True)
    ]
    train_here(configs[0])
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    train_here(configs[1])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    assert 0 < relative_l2(weights_at_end(configs[1]), weights_at_end(configs[0])) < 2e-6


def test_compiled_with_dropout_they_are_refused(slices: list[Path], tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", dropout=0.1)
    config = parsed(make_config(tmp_path, model, slices, compile=True, packing="fixed"), tmp_path)
    with pytest.raises(UnfitModelError, match=r"packing: fixed, but .*with dropout.*document by document"):
        causal_lm.prepare(causal_lm.load_model(model), config)


@pytest.mark.slow
def test_weights_are_the_same_bits_on_1_2_and_3_ranks_in_exact_mode(
    ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    # On 3 ranks some have dummies.
    trained = [
        ranks.train(
            make_config(
                tmp_path / f"{world_size}",
                tiny_model,
                slices,
                packing="fixed",
                world_size=world_size,
                exact=True,
                strategy="ddp" if world_size > 1 else "single",
                global_batch_size=12,
            )
        )
        for world_size in (1, 2, 3)
    ]
    assert are_bitwise_equal(weights_at_end(trained[1]), weights_at_end(trained[0]))
    assert are_bitwise_equal(weights_at_end(trained[2]), weights_at_end(trained[0]))
    assert len({facts_of(config)["num_padding_tokens"] for config in trained}) == 1
