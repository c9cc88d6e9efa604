"""Exact mode: the same bits on any number of ranks, on ragged text."""

import pytest

from tests.tiny import make_slice
from tests.training.conftest import are_bitwise_equal, facts_of, steps_of, weights_at_end
from training.strategies.ddp.exact import split_into_parcels

_MAX_GRAD_NORM = 0.5


@pytest.mark.slow
def test_exact_weights_after_ragged_steps_are_the_same_bits_on_1_2_and_4_ranks(trained, tmp_path):
    slices = [make_slice(tmp_path / "slice", num_rows=69, max_len=64)]
    alone, *others = (
        trained(
            slices=slices, world_size=world_size, exact=True, micro_batch_size=1, seq_len=64, schedule="cosine",
            warmup_steps=5, max_grad_norm=_MAX_GRAD_NORM, log_every_steps=9,
        )
        for world_size in (1, 2, 4)
    )  # fmt: skip
    weights, steps = weights_at_end(alone), steps_of(alone)
    assert [step["num_samples"] for step in steps] == [8] * 8 + [5]
    norms = [step["grad_norm"] for step in steps]
    assert sum(norm > _MAX_GRAD_NORM for norm in norms) >= 5, "clipping has to bite"
    assert len({step["num_tokens"] for step in steps}) > 5, "ragged"
    for config in others:
        assert are_bitwise_equal(weights_at_end(config), weights)
        assert [step["grad_norm"] for step in steps_of(config)] == norms
    facts = facts_of(others[-1])
    # 8 micro-batches are 2 rounds of 4 ranks, and so are 5; the whole gradient is one parcel.
    num_bytes = sum({tensor.data_ptr(): tensor.nbytes for tensor in weights.values()}.values())
    gathered = {"number": 9 * 2, "num_bytes": 9 * 2 * num_bytes}
    assert facts["traffic"] == {"all_gather": gathered}
    assert (facts["exchange"], facts["backend"]) == ({"num_parcels": 1}, "gloo")
    assert {key: facts["recorded_exchanges"][key] for key in gathered} == gathered
    assert (facts_of(alone)["traffic"], facts_of(alone)["backend"]) == ({}, None)


@pytest.mark.slow
def test_exact_holds_in_packs_in_16_bit(trained):
    alone, two = (trained(world_size=size, exact=True, precision="bf16", packing=True) for size in (1, 2))
    assert are_bitwise_equal(weights_at_end(two), weights_at_end(alone))


def test_gradients_travel_in_parcels_of_32_mib_or_one_alone():
    mib = 2**20
    sizes = [8 * mib, 24 * mib, 1 * mib, 100 * mib, 2 * mib, 3 * mib]
    assert [sizes[part] for part in split_into_parcels(sizes)] == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:]]
