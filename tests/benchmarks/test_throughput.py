"""The benchmark of throughput: its arithmetic by hand, the blocks that all peers share, and small real runs."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.throughput.contest import Found, hold_contest, judge_contest
from benchmarks.throughput.groups import Blocks, Setup, write_job
from benchmarks.throughput.job import Job, padded
from benchmarks.throughput.rows import small_qwen2, write_random_model, write_rows
from benchmarks.throughput.trying import list_settings
from tasks.records.estimate import Estimate

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


def _job(setup: Setup, folder: Path) -> Job:
    return write_job(setup, "ours", folder)


def test_every_peer_is_given_the_same_rows_in_a_block_however_it_orders_them(setup: Setup, tmp_path: Path) -> None:
    job = _job(setup, tmp_path)
    assert (job.num_blocks, job.steps_of(1), job.steps_of(2)) == (2, [4, 5, 6], [1, 2, 3])
    plain, grouped = job.sequence(by_length=False), job.sequence(by_length=True)
    assert plain != grouped
    assert plain[:8] == grouped[:8]  # the step that is not timed
    assert sorted(plain[8:24]) == sorted(grouped[8:24])
    lengths = [len(job.tokens(row)) for row in grouped[8:24]]
    assert lengths == sorted(lengths, reverse=True)
    ours = np.concatenate([job.rows_of(step) for step in job.steps_of(0)])
    assert plain[:24] == ours.tolist()


def test_tokens_of_a_block_are_counted_without_padding_and_after_cutting(
    setup: Setup, rows: list[np.ndarray], tmp_path: Path
) -> None:
    job = _job(setup, tmp_path)
    timed = [int(row) for step in job.steps_of(1)[1:] for row in job.rows_of(step)]
    assert job.num_units(1) == sum(min(len(rows[row]), _SEQ_LEN) for row in timed)
    assert job.num_targets(1) == job.num_units(1) - len(timed)
    assert max(len(row) for row in rows) > _SEQ_LEN


def test_a_padded_micro_batch_masks_its_padding_in_labels_and_attention() -> None:
    found = padded([np.array([5, 6, 7]), np.array([8])], length=3, multiple_of=4)
    assert found["input_ids"].tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert found["labels"].tolist() == [[5, 6, 7, -100], [8, -100, -100, -100]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def _make_found(setup: Setup, *, ours: list[float], theirs: list[float], losses: list[float] | None = None) -> Found:
    """Return a contest against the published loop with these seconds per block, 1,000 tokens in each."""
    tokens, expected = [1_000] * len(ours), [2.0] * len(ours)
    blocks = {
        "ours": Blocks(ours, expected, tokens, ours, peak_memory_bytes=300 * 2**20),
        "published": Blocks(theirs, losses or expected, tokens, theirs, peak_memory_bytes=400 * 2**20),
    }
    found = Found(
        setup=setup, peer="published", settings={name: {} for name in blocks}, blocks=blocks, ratio=None,
        stopped_because="", load=1.0,
    )  # fmt: skip
    # Of blocks whose CPU seconds are their seconds.
    return dataclasses.replace(found, ratio=found.cpu_ratio)


def _get_ratio(found: Found) -> Estimate:
    assert found.ratio is not None
    return found.ratio


def test_figures_of_a_contest_are_those_worked_out_by_hand(setup: Setup) -> None:
    found = _make_found(setup, ours=[0.5] * 12, theirs=[1.5] * 12)
    assert (_get_ratio(found).low, _get_ratio(found).high) == pytest.approx((3.0, 3.0))
    assert found.num_rounds == 6
    assert found.units_per_second("ours") == 2_000
    assert found.units_per_second("published") == pytest.approx(666.67, abs=0.01)
    speed, loss = judge_contest(found)
    assert speed.row()[1:] == [">= 2.5x", "3.00x (3.00 to 3.00)", "reached"]
    assert loss.is_reached


def test_no_speed_counts_where_the_losses_differ(setup: Setup) -> None:
    found = _make_found(setup, ours=[0.5] * 12, theirs=[5.0] * 12, losses=[2.0] * 11 + [2.001])
    assert found.largest_loss_difference == pytest.approx(5e-4)
    assert [one.is_reached for one in judge_contest(found)] == [False, False]


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
