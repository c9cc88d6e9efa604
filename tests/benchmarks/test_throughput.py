"""The benchmark of throughput: each peer does the work that ours does."""

import time

import numpy as np
import pytest

from benchmarks.throughput.contest import hold_contest
from benchmarks.throughput.groups import Setup
from benchmarks.throughput.rows import small_qwen2, write_random_model, write_rows
from benchmarks.throughput.trying import list_settings

_SHAPE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
@pytest.mark.parametrize("peer", ["published", "trainer", "accelerated"])
def test_a_peer_does_the_same_work_as_ours_on_two_processes_until_its_time_is_over(peer, tmp_path):
    random = np.random.default_rng(3)
    # Some are longer than the sequence length.
    rows = [random.integers(0, 128, size=length) for length in random.integers(2, 31, size=64)]
    setup = Setup(
        name="tiny", model_dir=write_random_model(tmp_path / "model", small_qwen2(128, **_SHAPE)),
        slice_dir=write_rows(tmp_path / "rows", rows), num_rows=len(rows), world_size=2, global_batch_size=8,
        seq_len=24, steps_per_block=2,
    )  # fmt: skip
    settings = {name: list_settings(setup, name, tmp_path / "settings")[0] for name in ("ours", peer)}
    found = hold_contest(
        setup, peer, tmp_path, settings=settings, max_seconds=600, min_rounds=100, ends_at=time.monotonic() + 1
    )
    assert found.losses_agree, found.largest_loss_difference
    assert (found.num_rounds, found.ratio) == (1, None)
    assert found.stopped_because == "its time was over after 1 rounds"
    assert {len(blocks.seconds) for blocks in found.blocks.values()} == {2}
    assert found.blocks["ours"].num_units == found.blocks[peer].num_units
