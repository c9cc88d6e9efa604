"""Which updates are checked: the first, the last, two of every segment, and the rest over the whole."""

import pytest

from tasks.equivalence.draw import draw_updates

NAMES = ["2proc 0-500 epoch 1", "2proc 0-500 epoch 2", "2proc 500-1300 epoch 1", "2proc 500-1300 epoch 2"]


PARTIAL = [True, True, False, False]


def test_twelve_are_drawn_over_the_steps_of_the_default_comparison():
    drawn = draw_updates(NAMES, [32, 32, 50, 50], updates=12, seed=1, are_partial=PARTIAL)
    assert [len(one.required + one.optional) for one in drawn] == [3, 2, 4, 3]
    assert all(len(one.required) >= 2 for one in drawn)
    assert (drawn[0].required[0], drawn[0].required[-1], drawn[-1].required[-1]) == (1, 32, 50)
    for one, size in zip(drawn, [32, 32, 50, 50], strict=True):
        steps = one.required + one.optional
        assert len(set(steps)) == len(steps)
        assert set(steps) <= set(range(1, size + 1))
    assert drawn == draw_updates(NAMES, [32, 32, 50, 50], updates=12, seed=1, are_partial=PARTIAL)
    assert drawn != draw_updates(NAMES, [32, 32, 50, 50], updates=12, seed=2, are_partial=PARTIAL)
    plain = draw_updates(NAMES, [32, 32, 50, 50], updates=12, seed=1)
    assert [len(one.required + one.optional) for one in plain] == [2, 2, 4, 4]


def test_one_more_segment_leaves_the_draws_before_it_as_far_as_they_go():
    before, after = (draw_updates(NAMES[:size], [40] * size, updates=12, seed=1) for size in (2, 3))
    assert len(before[0].required + before[0].optional) == 6
    assert len(after[0].required + after[0].optional) == 4
    for old, new in zip(before[:1], after[:1], strict=True):
        assert set(new.required + new.optional) <= set(old.required + old.optional)


@pytest.mark.parametrize(("sizes", "updates", "numbers"), [
    ([1], 12, [1]), ([2, 1], 12, [2, 1]), ([100] * 10, 12, [2] * 10), ([1000, 10], 12, [11, 2]), ([5, 5], 0, [0, 0]),
    ([9], 1, [3]),
])  # fmt: skip
def test_no_segment_is_left_out_and_none_has_more_than_its_steps(sizes, updates, numbers):
    drawn = draw_updates([f"segment {place}" for place in range(len(sizes))], sizes, updates=updates, seed=0)
    assert [len(one.required + one.optional) for one in drawn] == numbers


def test_every_step_but_the_first_and_the_last_is_drawn_equally_often():
    counts = [0] * 21
    for seed in range(2000):
        (drawn,) = draw_updates(["segment"], [20], updates=6, seed=seed)
        for step in drawn.required + drawn.optional:
            counts[step] += 1
    assert counts[1] == counts[20] == 2000
    # 4 of 18.
    assert all(380 < number < 510 for number in counts[2:20])


@pytest.mark.parametrize("sizes", [[20], [20, 20], [20, 20, 20], [4] * 6])
def test_where_checks_take_long_one_of_each_segment_is_still_drawn_by_chance(sizes):
    names = [f"segment {place}" for place in range(len(sizes))]
    found = [draw_updates(names, sizes, updates=12, seed=seed) for seed in range(9)]
    for drawn in found:
        by_chance = [
            {*drawn[place].required} - ({1, size} if place == 0 else {size}) for place, size in enumerate(sizes)
        ]
        assert all(by_chance)
        assert sum(map(len, by_chance)) >= 4
