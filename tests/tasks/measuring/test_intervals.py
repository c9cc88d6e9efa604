"""Intervals by hand, and how often they cover on launches and turns whose truth is known."""

import math

import numpy as np
import pytest

from tasks.measuring import intervals
from tasks.measuring.intervals import estimate_mean, estimate_ratio

T_OF_3 = 3.1824
"""Student's quantile of 97.5 % with 3 degrees of freedom, from a table."""


def test_interval_of_one_launch_is_students_over_its_turns():
    found = estimate_mean([[2.0, 3.0, 1.0, 4.0]])
    half_width = T_OF_3 * math.sqrt(5 / 3) / 2
    assert (found.value, found.high - found.value) == pytest.approx((2.5, half_width), rel=1e-4)
    assert estimate_mean([[2.0, 3.0, 1.0, 4.0]], confidence=0.99).high > found.high


def test_interval_of_several_launches_is_students_over_their_means_where_starts_differ():
    # Turns of a launch are alike to 0.001; the means are 1, 2, 3, 4, whose turns alternate around them.
    launches = [[mean + 0.001, mean - 0.001] * int(mean) for mean in (1.0, 2.0, 3.0, 4.0)]
    found = estimate_mean(launches)
    # Each launch counts once, however many turns it had.
    assert found.value == pytest.approx(2.5)
    assert found.high - found.value == pytest.approx(T_OF_3 * math.sqrt(5 / 3) / 2, rel=1e-3)


def test_launches_that_are_alike_by_luck_do_not_narrow_what_their_turns_leave_open():
    random = np.random.default_rng(4)
    turns = random.normal(10, 1, size=(4, 6))
    turns -= turns.mean(axis=1, keepdims=True) - 10
    found = estimate_mean(turns.tolist())
    of_turns = 2.0687 * float(turns.std(ddof=1)) / math.sqrt(24)
    assert found.high - found.value == pytest.approx(of_turns, rel=1e-3)


def test_a_ratio_is_that_of_the_means_so_that_a_stall_counts_with_what_it_cost():
    quiet, stalled = [0.2] * 9, [0.1] * 8 + [0.4]
    found = estimate_ratio([quiet], [stalled])
    assert found.value == pytest.approx(1.8 / 1.2)
    assert found.value / found.low == pytest.approx(found.high / found.value)
    other_way = estimate_ratio([stalled], [quiet])
    assert other_way.value == pytest.approx(1 / found.value)


def test_the_interval_of_a_speedup_has_a_floor_that_more_launches_bring_down_and_noise_does_not_raise():
    def estimate(num_launches, noise):
        random = np.random.default_rng(1)
        turns = random.lognormal(0, noise, size=(2, num_launches, 4)) * np.array([0.15, 0.1])[:, None, None]
        return intervals.estimate_speedup(*turns.tolist())

    assert estimate(3, 0.001).relative_half_width == pytest.approx(0.07)
    assert estimate(12, 0.001).relative_half_width == pytest.approx(0.035)
    assert estimate(3, 0.3).relative_half_width > 0.2


@pytest.mark.parametrize(
    ("launches", "says"),
    [
        *((few, "allowed: 4 turns of one launch, or at least 3 launches") for few in ([[1, 2, 3]], [[1] * 9] * 2, [])),
        *(([[wrong, 1, 1, 1]], "values must be finite and above 0") for wrong in (0.0, -1.0, math.nan, math.inf)),
    ],
)
def test_what_cannot_have_an_interval_is_refused(launches, says):
    with pytest.raises(ValueError, match=says):
        estimate_ratio(launches, launches)
    with pytest.raises(ValueError, match="turns must pair"):
        estimate_ratio([[1.0] * 5], [[1.0] * 4])
