"""Which updates are checked: the first, the last, two of every segment, and the rest over the whole."""

import pytest

from tasks.equivalence.draw import draw_updates

DEFAULT, PARTIAL = [32, 32, 50, 50], {"are_partial": [True, True, False, False]}


def draw(sizes, *, updates=12, seed=1, **more):
    """Return what is drawn of segments of so many steps, and all steps of each."""
    names = [f"segment {place}" for place in range(len(sizes))]
    drawn = draw_updates(names, sizes, updates=updates, seed=seed, **more)
    return drawn, [one.required + one.optional for one in drawn]


def test_twelve_are_drawn_over_the_steps_of_the_default_comparison():
    drawn, steps = draw(DEFAULT, **PARTIAL)
    assert all(len(one.required) >= 2 for one in drawn)
    assert (drawn[0].required[0], drawn[0].required[-1], drawn[-1].required[-1]) == (1, 32, 50)
    for its, size in zip(steps, DEFAULT, strict=True):
        assert len({*its} & {*range(1, size + 1)}) == len(its)
    assert drawn == draw(DEFAULT, **PARTIAL)[0] != draw(DEFAULT, seed=2, **PARTIAL)[0]


def test_one_more_segment_leaves_the_draws_before_it_as_far_as_they_go():
    before, after = (draw([40] * number)[1][0] for number in (2, 3))
    assert (len(before), len(after)) == (6, 4)
    assert {*after} <= {*before}


@pytest.mark.parametrize(
    ("sizes", "how", "numbers"),
    [
        (DEFAULT, PARTIAL, [3, 2, 4, 3]),
        (DEFAULT, {}, [2, 2, 4, 4]),
        ([2, 1], {}, [2, 1]),
        ([1000, 10], {}, [11, 2]),
        ([5, 5], {"updates": 0}, [0, 0]),
        ([9], {"updates": 1}, [3]),
    ],
)
def test_no_segment_is_left_out_and_none_has_more_than_its_steps(sizes, how, numbers):
    assert list(map(len, draw(sizes, **how)[1])) == numbers


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
    for seed in range(9):
        by_chance = [
            {*one.required} - ({1, size} if place == 0 else {size})
            for place, (one, size) in enumerate(zip(draw(sizes, seed=seed)[0], sizes, strict=True))
        ]
        assert all(by_chance)
        assert sum(map(len, by_chance)) >= 4
