"""Exact mode: the same bits on any number of ranks, on ragged text; and how near the fast mode comes."""

import pytest

from tests.tiny import make_slice
from tests.training.conftest import facts_of, sha256_of, steps_of, weights_at_end
from training.strategies.ddp.exact import split_into_parcels

_MAX_GRAD_NORM = 0.5


@pytest.mark.slow
def test_exact_weights_after_25_ragged_steps_are_the_same_bits_on_1_2_and_4_ranks(trained, tmp_path):
    slices = [make_slice(tmp_path / "slice", num_rows=197, max_len=64)]
    alone, *_, four = configs = [
        trained(
            slices=slices, world_size=world_size, exact=True, micro_batch_size=1, seq_len=64, schedule="cosine",
            warmup_steps=5, max_grad_norm=_MAX_GRAD_NORM, log_every_steps=25,
        )
        for world_size in (1, 2, 4)
    ]  # fmt: skip
    assert len(set(map(sha256_of, configs))) == 1
    steps = steps_of(alone)
    assert [step["num_samples"] for step in steps] == [8] * 24 + [5]
    norms = [step["grad_norm"] for step in steps]
    assert sum(norm > _MAX_GRAD_NORM for norm in norms) >= 5, "clipping has to bite"
    assert len({step["num_tokens"] for step in steps}) > 15, "ragged"
    assert all([step["grad_norm"] for step in steps_of(config)] == norms for config in configs)
    facts = facts_of(four)
    # 8 micro-batches are 2 rounds of 4 ranks, and so are 5; the whole gradient is one parcel.
    gathered = {"number": 25 * 2, "num_bytes": 25 * 2 * _count_bytes(alone)}
    assert facts["traffic"] == {"all_gather": gathered}
    assert (facts["exchange"], facts["backend"]) == ({"num_parcels": 1}, "gloo")
    assert {key: facts["recorded_exchanges"][key] for key in gathered} == gathered
    assert (facts_of(alone)["traffic"], facts_of(alone)["backend"]) == ({}, None)


def _count_bytes(config):
    weights = {tensor.data_ptr(): tensor for tensor in weights_at_end(config).values()}
    return sum(tensor.nbytes for tensor in weights.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"precision": "bf16"}, {"packing": True, "workload": "sequence_classification", "model": "modernbert, mean"}],
    ids=str,
)  # fmt: skip
def test_exact_holds_in_16_bit_and_in_packs(changes, trained):
    assert len({sha256_of(trained(world_size=size, exact=True, **changes)) for size in (1, 2)}) == 1


def test_gradients_travel_in_parcels_of_32_mib_or_one_alone():
    mib = 2**20
    sizes = [8 * mib, 24 * mib, 1 * mib, 100 * mib, 2 * mib, 3 * mib]
    assert [sizes[part] for part in split_into_parcels(sizes)] == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:]]
