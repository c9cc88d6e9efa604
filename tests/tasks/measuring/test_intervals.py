"""Intervals by hand, and how often they cover on launches and turns whose truth is known."""

import math

import numpy as np
import pytest

from tasks.measuring import intervals
from tasks.measuring.intervals import estimate_mean, estimate_ratio
from tasks.records.estimate import Estimate

NUM_EXPERIMENTS = 400
T_OF_3 = 3.1824
"""Student's quantile of 97.5 % with 3 degrees of freedom, from a table."""


def test_interval_of_one_launch_is_students_over_its_turns() -> None:
    found = estimate_mean([[2.0, 3.0, 1.0, 4.0]])
    half_width = T_OF_3 * math.sqrt(5 / 3) / 2
    assert (found.value, found.high - found.value) == pytest.approx((2.5, half_width), rel=1e-4)


def test_interval_of_several_launches_is_students_over_their_means_where_starts_differ() -> None:
    # Turns of a launch are alike to 0.001; the means are 1, 2, 3, 4, whose turns alternate around them.
    launches = [[mean + 0.001, mean - 0.001, mean + 0.001, mean - 0.001] for mean in (1.0, 2.0, 3.0, 4.0)]
    found = estimate_mean(launches)
    # Neighbouring turns are alike beyond 0.2, so that it is wider.
    assert found.high - found.value == pytest.approx(1.75 * T_OF_3 * math.sqrt(5 / 3) / 2, rel=1e-3)


def test_launches_that_are_alike_by_luck_do_not_narrow_what_their_turns_leave_open() -> None:
    random = np.random.default_rng(4)
    turns = random.normal(10, 1, size=(4, 6))
    turns -= turns.mean(axis=1, keepdims=True) - 10
    found = estimate_mean(turns.tolist())
    of_turns = 2.0687 * float(turns.std(ddof=1)) / math.sqrt(24)
    assert found.high - found.value == pytest.approx(of_turns, rel=1e-3)


def test_a_ratio_is_that_of_the_means_so_that_a_stall_counts_with_what_it_cost() -> None:
    quiet, stalled = [0.2] * 9, [0.1] * 8 + [0.4]
    found = estimate_ratio([quiet], [stalled])
    assert found.value == pytest.approx(1.8 / 1.2)
    assert found.value / found.low == pytest.approx(found.high / found.value)
    other_way = estimate_ratio([stalled], [quiet])
    assert other_way.value == pytest.approx(1 / found.value)


def test_one_turn_with_more_of_the_scatter_than_chance_gives_it_widens_the_interval() -> None:
    turns = [1.0, 1.001, 0.999, 1.0, 1.001, 0.999, 1.0, 1.2]
    found = estimate_mean([turns])
    plain = 2.3646 * float(np.std(turns, ddof=1)) / math.sqrt(8)
    assert found.high - found.value == pytest.approx(1.75 * plain, rel=1e-3)


@pytest.mark.parametrize(("num_turns", "critical"), [(4, 1.481), (8, 2.126), (12, 2.412), (24, 2.802)])
def test_what_chance_gives_a_turn_is_what_grubbs_table_says(num_turns: int, critical: float) -> None:
    assert intervals.compute_chance_part(num_turns) == pytest.approx(critical**2 / (num_turns - 1), rel=1e-3)
    random = np.random.default_rng(num_turns)
    parts = [intervals.compute_largest_part(random.normal(size=num_turns)) for _ in range(4000)]
    assert np.mean(np.array(parts) > intervals.compute_chance_part(num_turns)) == pytest.approx(0.05, abs=0.011)
    assert intervals.compute_chance_part(3) == 1.0, "of three turns one always has most of the scatter"


def test_what_slows_whole_turns_down_does_not_widen_the_interval_of_a_ratio() -> None:
    random = np.random.default_rng(0)
    slow, fast = 0.2 * random.lognormal(0, 0.01, size=30), 0.1 * random.lognormal(0, 0.01, size=30)
    drift = np.exp(random.normal(0, 0.3, size=30))
    calm, stormy = estimate_ratio([slow], [fast]), estimate_ratio([slow * drift], [fast * drift])
    assert stormy.relative_half_width == pytest.approx(calm.relative_half_width, rel=0.35)
    assert stormy.value == pytest.approx(calm.value, rel=0.01)


def test_neighbours_that_are_alike_are_found_and_independent_ones_are_not() -> None:
    random = np.random.default_rng(1)
    independent = [random.normal(size=8) for _ in range(4)]
    assert intervals.compute_autocorrelation(independent) < intervals.ALIKE
    slow = np.cumsum(random.normal(size=32))
    assert intervals.compute_autocorrelation(list((slow - slow.mean()).reshape(4, 8))) > 0.6
    assert intervals.compute_autocorrelation([np.zeros(4)]) == 0.0


def test_why_the_interval_of_a_ratio_is_wider_is_told_exactly_where_it_is() -> None:
    even = [1.0] * 8
    calm, slow, stalled = [1.0, 1.01] * 4, [1.0] * 4 + [1.01] * 4, [1.0] * 7 + [1.2]
    assert intervals.find_doubts([calm], [even]) == (None, None)
    alike, largest = intervals.find_doubts([slow], [even])
    assert alike is not None
    assert alike > intervals.ALIKE
    assert largest is None
    assert intervals.find_doubts([stalled], [even]) == (None, pytest.approx(7 / 8))
    for turns, is_wider in ((calm, False), (slow, True), (stalled, True)):
        plain = 2.3646 * float(np.std(turns, ddof=1)) / math.sqrt(8) / float(np.mean(turns))
        found = estimate_ratio([turns], [even])
        assert math.log(found.high / found.value) == pytest.approx(plain * (1.75 if is_wider else 1), rel=1e-3)


@pytest.mark.parametrize("num_turns", [4, 12, 40])
def test_a_fixed_number_of_turns_covers_a_ratio(num_turns: int) -> None:
    covered = []
    for seed in range(NUM_EXPERIMENTS):
        random = np.random.default_rng(seed)
        level = random.lognormal(0, 0.1, size=num_turns)
        slow, fast = (level * true * random.lognormal(0, 0.05, size=num_turns) for true in (0.15, 0.1))
        covered.append(estimate_ratio([slow], [fast]).contains(1.5))
    assert 0.92 <= np.mean(covered) <= 0.985


@pytest.mark.parametrize("num_launches", [3, 8])
@pytest.mark.parametrize("num_turns", [5, 12])
@pytest.mark.parametrize("of_start", [0.0, 0.03, 0.05])
def test_launches_cover_whatever_their_starts_do(num_launches: int, num_turns: int, of_start: float) -> None:
    covered = []
    for seed in range(NUM_EXPERIMENTS):
        random = np.random.default_rng(seed)
        starts = np.exp(of_start * random.normal(size=(2, num_launches, 1)))
        noise = random.lognormal(0, 0.03, size=(2, num_launches, num_turns))
        turns = starts * np.array([0.15, 0.1])[:, None, None] * noise
        covered.append(estimate_ratio(*turns.tolist()).contains(1.5))
    # Two standard errors around 93 to 98 %; wider than need be in long launches, and where many starts plainly differ.
    assert 0.92 <= np.mean(covered) <= (0.99 if of_start < 0.03 and num_turns == 5 else 1.0)


def test_higher_confidence_is_wider() -> None:
    turns = [1.0, 1.1, 0.9, 1.05, 0.97]
    widths = [estimate_mean([turns], confidence=confidence).relative_half_width for confidence in (0.9, 0.95, 0.99)]
    assert widths == sorted(widths)


def test_needed_turns_grow_with_the_square_of_the_width() -> None:
    assert intervals.count_needed_turns(20, 0.06, 0.03) == 80
    assert intervals.count_needed_turns(20, 0.03, 0.03) == 20


def test_what_cannot_have_an_interval_is_refused() -> None:
    for few in ([[1.0, 2.0, 3.0]], [[1.0] * 9, [1.0] * 9], []):
        with pytest.raises(ValueError, match="allowed: 4 turns of one launch, or at least 3 launches"):
            estimate_mean(few)
    with pytest.raises(ValueError, match="turns must pair"):
        estimate_ratio([[1.0] * 5], [[1.0] * 4])
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="values must be finite and above 0"):
            estimate_ratio([[wrong, 1.0, 1.0, 1.0]], [[1.0] * 4])
    assert estimate_mean([[-1.0, 1.0, -1.0, 1.0]]).value == 0.0


def test_an_interval_around_0_has_no_relative_width() -> None:
    assert Estimate(0.0, -1.0, 1.0).relative_half_width == math.inf
    assert Estimate(2.0, 1.5, 2.5).relative_half_width == 0.25
    assert Estimate(2.0, 1.5, 2.5).contains(1.5)
    assert not Estimate(2.0, 1.5, 2.5).contains(1.49)
