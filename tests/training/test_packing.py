"""Several rows in one sequence: the same update as row by row."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny import make_tiny_model, write_slice
from tests.training.conftest import relative_l2, take_gradient
from tests.training.models import build
from training.data.batches import open_slice
from training.data.plan import plan_segment
from training.process.failure import UnfitModelError
from training.workloads import causal_lm


def test_rows_follow_one_another_and_padding_is_a_document_of_its_own(tmp_path):
    source = open_slice(write_slice(tmp_path, [[5, 6, 7], [9], [1, 2]], first_row=20))
    packed = source.collate([0, 2, 1], seq_len=16, is_packed=True)
    assert packed.input_ids.tolist() == [[5, 6, 7, 1, 2, 9, 0, 0]]
    assert packed.labels.tolist() == [[6, 7, -100, 2, -100, -100, -100, -100]]
    assert (packed.row_ids.tolist(), packed.sample_num_tokens.tolist()) == ([20, 22, 21], [2, 1, 0])
    assert packed.documents.lengths == (3, 2, 3)
    assert packed.num_padding_tokens == 2
    # Padding never makes a row longer than seq_len.
    full = source.collate([0, 0], seq_len=3, is_packed=True)
    assert (full.input_ids.shape, full.documents.lengths) == ((1, 6), (3, 3))


@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=120),
    micro_batch_size=st.integers(1, 6),
    num_parts=st.integers(1, 5),
)
def test_packs_hold_every_row_once_are_as_many_as_without_and_nearly_equal(lengths, micro_batch_size, num_parts):
    sizes = np.array(lengths)
    plans = [
        plan_segment(
            sizes, seed=3, epoch=1, rows=f"0-{len(sizes)}", global_batch_size=micro_batch_size * num_parts,
            micro_batch_size=micro_batch_size, is_packed=is_packed,
        )
        for is_packed in (True, False)
    ]  # fmt: skip
    for number in range(1, plans[0].num_steps + 1):
        packed, plain = (plan.step(number) for plan in plans)
        assert len(packed.micro_batches) == len(plain.micro_batches)
        assert Counter(np.concatenate(packed.micro_batches)) == Counter(np.concatenate(plain.micro_batches))
        assert packed.num_tokens == plain.num_tokens
        tokens = [int(np.maximum(sizes[part], 1).sum()) for part in packed.micro_batches]
        assert tokens == sorted(tokens, reverse=True)
        assert tokens[0] - tokens[-1] <= max(int(sizes.max()), 1), "one row more or less at most"


@pytest.mark.parametrize("kind", ["tiny", "untied", "opt, far apart"])
def test_rows_have_the_loss_and_the_gradient_that_they_have_alone(kind, toy):
    told = toy.read(model=kind, packing=True)
    model, source = causal_lm.load_model(told.model_dir).eval(), open_slice(told.segments[0].slice_dir)
    causal_lm.prepare(model, told)
    loss, gradient = take_gradient(causal_lm, model, [source.collate(range(12), seq_len=32, is_packed=True)])
    loss_alone, gradient_alone = take_gradient(
        causal_lm, model, [source.collate([row], seq_len=32) for row in range(12)]
    )
    assert loss == pytest.approx(loss_alone, rel=1e-6)
    assert relative_l2(gradient, gradient_alone) < 1e-6


@pytest.mark.parametrize(
    ("hidden_size", "keys"),
    [(32, {"document_boundaries", "longest_document", "takes_groups"}), (48, {"document_lengths"})],
)
def test_heads_that_the_kernel_for_all_documents_refuses_are_attended_to_one_document_after_the_other(
    hidden_size, keys, slices, tmp_path, monkeypatch
):
    # As on a GPU.
    monkeypatch.setattr(causal_lm, "has_varlen_kernel", lambda device, *, is_16_bit: True)
    packed = open_slice(slices[0]).collate(range(4), seq_len=32, is_packed=True)
    model = causal_lm.load_model(make_tiny_model(tmp_path, hidden_size=hidden_size))
    assert causal_lm._make_attention_inputs(model, packed).keys() == {"position_ids", *keys}


# Positions that cannot begin anew, a window shorter than a row, and a cap that changes no random weights' scores yet.
@pytest.mark.parametrize(
    ("kind", "says"), [("bloom", "cannot: .* use packing: false"), ("mistral", "a window of 16 tokens"),
                       ("gemma2", "cannot: .* use packing: false")],
)  # fmt: skip
def test_a_model_that_cannot_keep_rows_apart_is_refused(kind, says, toy):
    with pytest.raises(UnfitModelError, match=says) as caught:
        causal_lm.prepare(build(kind), toy.read(packing=True))
    assert ("\n" in str(caught.value), caught.value.exit_code) == (False, 2)
