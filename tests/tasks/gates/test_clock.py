"""The gate `Only steps were timed`, with figures worked out by hand.

In the comparison as written 1proc has 4 steps of 3, 3, 2 and 2 s, 2proc of 2, 2, 1.2 and 1.2 s, in 2 segments; each
segment also has 0.5 s of checkpoints and 0.125 s of log points, and the wall clock passed just that.
"""

import numpy as np
import pytest

from tasks.gates.clock import check_clock
from tests.tasks.gates.conftest import require
from tests.tasks.reporting.blocks import make_steps
from tests.tasks.reporting.comparison import edit_segment, edit_steps


@pytest.mark.parametrize(
    ("cell", "others", "code"),
    [
        # 20 ms of each step are the loop's own; 5 % of 6.4 s are 0.32 s.
        ("2proc", [0.33, 0.018], "passed"),
        ("2proc", [0.35, 0.02], "timed_without_a_step"),
        ("1proc", [-0.3, -0.19], "passed"),
        ("1proc", [-0.3, -0.3], "clock_stood_still"),
    ],
)
def test_seconds_in_which_no_step_ran_fail_beyond_5_percent(tmp_path, expect, cell, others, code):
    for index, seconds in enumerate(others):
        edit_steps(tmp_path, cell, index=index, other_seconds=seconds)
    edit_segment(tmp_path, cell, other_seconds=sum(others) - 0.002)  # the other segment has 0.002
    expect(check_clock, code, cell)


@pytest.mark.parametrize(
    ("cell", "span_seconds", "code"),
    [
        # 1proc 0-8 adds up to 6.625 s; 5 % of its 10 s are 0.5 s.
        ("1proc", 6.13, "passed"),
        ("1proc", 6.12, "timed_twice"),
        ("1proc", 7.16, "passed"),  # and 4 times 10 ms
        ("1proc", 7.17, "not_timed"),
        # Of two ranks 4 times 10 ms either way: 4.625 s, 5 % of 6.4 s are 0.32 s.
        ("2proc", 4.26, "timed_twice"),
    ],
)
def test_seconds_counted_twice_or_never_fail(tmp_path, expect, cell, span_seconds, code):
    edit_segment(tmp_path, cell, span_seconds=span_seconds)
    expect(check_clock, code, cell)


@pytest.mark.parametrize(
    ("slow_seconds", "num_positions", "num_steps", "fails"),
    [
        (2.1, 100, 20, True),
        (2.1, 2000, 20, False),  # 20 times the positions, so 2.1 times as slow
        (0.51, 100, 20, True),  # 10.2 times the median, and 0.46 s are more than 10 % of 2.46 s
        (0.49, 100, 20, False),  # 9.8 times the median
        (0.6, 100, 100, False),  # 12 times the median, but 0.55 s of 10.55 s
    ],
)
def test_a_step_of_over_10_times_the_median_fails_with_its_number_and_seconds(
    read, slow_seconds, num_positions, num_steps, fails
):
    """All other steps take 0.05 s, of 100 positions each."""
    outputs, is_third = read(), np.arange(2 * num_steps) == 2
    seconds, positions = np.where(is_third, slow_seconds, 0.05), np.where(is_third, num_positions, 100)
    outputs.runs["2proc"].__dict__["steps"] = make_steps(seconds, num_positions=positions)
    wanted = {"step": 3, "seconds": slow_seconds, "median": 0.05, "slow_steps": 1}
    require(check_clock(outputs, "2proc"), "slow_step" if fails else "passed", **wanted if fails else {})
