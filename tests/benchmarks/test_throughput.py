"""The benchmark of throughput: its arithmetic by hand, the blocks that all peers share, and small real runs."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.throughput.contest import hold_contest
from benchmarks.throughput.groups import Setup
from benchmarks.throughput.rows import small_qwen2, write_random_model, write_rows
from benchmarks.throughput.trying import list_settings

_PEERS = ("ours", "published", "trainer", "accelerated")
_SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1} | {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_NUM_ROWS, _SEQ_LEN = 64, 24


@pytest.fixture(scope="module")
def rows() -> list[np.ndarray]:
    """Rows of 2 to 30 tokens, some of them longer than the sequence length."""
    random = np.random.default_rng(3)
    return [random.integers(0, 128, size=length) for length in random.integers(2, 31, size=_NUM_ROWS)]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory, rows: list[np.ndarray]) -> Setup:
    """Two timed steps of 8 rows per block, on a model of one layer."""
    folder = tmp_path_factory.mktemp("throughput")
    return Setup(
        name="tiny", model_dir=write_random_model(folder / "model", small_qwen2(128, **_SHAPE)),
        slice_dir=write_rows(folder / "rows", rows), num_rows=_NUM_ROWS, world_size=1, global_batch_size=8,
        seq_len=_SEQ_LEN, steps_per_block=2,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
@pytest.mark.parametrize("peer", _PEERS[1:])
def test_a_peer_does_the_same_work_as_ours_on_two_processes_until_its_time_is_over(
    setup: Setup, peer: str, tmp_path: Path
) -> None:
    pair = dataclasses.replace(setup, world_size=2)
    settings = {name: list_settings(pair, name, tmp_path / "settings")[0] for name in ("ours", peer)}
    found = hold_contest(
        pair, peer, tmp_path, settings=settings, max_seconds=600, min_rounds=100, ends_at=time.monotonic() + 1
    )
    assert found.losses_agree, found.largest_loss_difference
    assert found.num_rounds == 1
    assert found.ratio is None
    assert found.stopped_because == "its time was over after 1 rounds"
    assert {len(blocks.seconds) for blocks in found.blocks.values()} == {2}
    assert found.blocks["ours"].num_units == found.blocks[peer].num_units
