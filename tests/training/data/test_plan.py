"""Which samples make up a step, for any number of ranks."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.batches import Slice
from training.data.plan import make_micro_batches, plan_segment

WORLD_SIZES = (1, 2, 3, 4, 7)


def _plan(lengths, **told):
    return plan_segment(lengths, **{"seed": 3, "epoch": 1, "rows": f"0-{len(lengths)}", **told})


def _slice_with(lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Slice(tokens=np.arange(offsets[-1], dtype=np.int32), offsets=offsets, row_ids=np.arange(len(lengths)) + 1000)


@given(st.integers(1, 200), st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 6))
@settings(max_examples=20)
def test_every_sample_is_used_exactly_once_by_any_number_of_ranks(num_rows, draw, micro_batch_size, per_batch):
    lengths = np.random.default_rng(draw).integers(0, 50, size=num_rows)
    source = _slice_with(lengths)
    plan = _plan(source.lengths(32), global_batch_size=micro_batch_size * per_batch, micro_batch_size=micro_batch_size)
    for world_size in WORLD_SIZES:
        used = Counter()
        tokens = 0
        for segment_step in range(1, plan.num_steps + 1):
            step = plan.step(segment_step)
            per_rank = [
                list(make_micro_batches(source, step, rank=rank, world_size=world_size, seq_len=32, seed=(3, 1)))
                for rank in range(world_size)
            ]
            assert len({len(parts) for parts in per_rank}) == 1, "a rank with fewer micro-batches would hang the rest"
            used.update(int(row) for parts in per_rank for part in parts for row in part.row_ids)
            counted = sum(part.num_tokens for parts in per_rank for part in parts)
            assert counted == step.num_tokens
            tokens += counted
        assert used == Counter(range(1000, 1000 + num_rows))
        assert tokens == sum(max(min(length, 32) - 1, 0) for length in lengths.tolist())


def test_each_micro_batch_of_each_step_and_seed_draws_dropout_of_its_own():
    source = _slice_with(np.full(12, 5))
    plan = _plan(source.lengths(32), global_batch_size=4, micro_batch_size=1)
    drawn = [
        part.dropout_seed
        for seed in (3, 4)
        for step in (1, 2, 3)
        for part in make_micro_batches(source, plan.step(step), rank=0, world_size=1, seq_len=32, seed=(seed, step))
    ]
    assert len(set(drawn)) == len(drawn) == 24


def test_epochs_have_orders_of_their_own_and_each_is_reproducible():
    lengths = np.full(50, 8)
    first, again, second = (
        _plan(lengths, global_batch_size=8, micro_batch_size=2, epoch=epoch).order for epoch in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_the_largest_step_has_the_largest_micro_batch_of_the_segment_packed_on_average(size, is_packed):
    for seed in range(8):
        lengths = np.random.default_rng(seed).integers(1, 500, size=16 * 7 + 5)
        plan = _plan(lengths, seed=seed, global_batch_size=16, micro_batch_size=size, is_packed=is_packed)
        steps = [
            [int(lengths[rows].sum() if is_packed else len(rows) * lengths[rows].max()) for rows in step.micro_batches]
            for step in map(plan.step, range(1, plan.num_steps + 1))
        ]
        largest = steps[plan.find_largest_step() - 1]
        if is_packed:
            assert sum(largest) / len(largest) == max(sum(parts) / len(parts) for parts in steps)
        else:
            assert largest[0] == max(map(max, steps))
