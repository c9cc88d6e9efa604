"""The gate `Only steps were timed`, with figures worked out by hand.

In the comparison as written 1proc has 4 steps of 3, 3, 2 and 2 s, 2proc of 2, 2, 1.2 and 1.2 s, in 2 segments; each
segment also has 0.5 s of checkpoints and 0.125 s of log points, and the wall clock passed just that.
"""

import pytest

from tasks.gates.clock import check_clock
from tests.tasks.reporting.comparison import SECONDS, edit_segment, edit_steps, read_lines, segment_folder, write_lines


@pytest.mark.parametrize(
    ("cell", "others", "code", "numbers"),
    [
        # 20 ms of each step are the loop's own; 5 % of 6.4 s are 0.32 s.
        ("2proc", [0.33, 0.018], "passed", {}),
        ("2proc", [0.35, 0.02], "timed_without_a_step", {"seconds_without_a_step": 0.37, "train_seconds": 6.4}),
        ("1proc", [-0.3, -0.19], "passed", {}),
        ("1proc", [-0.3, -0.3], "clock_stood_still", {"seconds_untimed": 0.6, "step": 1}),
    ],
)
def test_seconds_in_which_no_step_ran_fail_beyond_5_percent(tmp_path, expect, cell, others, code, numbers):
    for index, seconds in enumerate(others):
        edit_steps(tmp_path, cell, index=index, other_seconds=seconds)
    edit_segment(tmp_path, cell, other_seconds=sum(others) - 0.002)  # the other segment has 0.002
    expect(check_clock, code, cell, **numbers)


@pytest.mark.parametrize(
    ("cell", "span_seconds", "code", "numbers"),
    [
        # 1proc 0-8 adds up to 6.625 s; 5 % of its 10 s are 0.5 s.
        ("1proc", 6.13, "passed", {}),
        ("1proc", 6.12, "timed_twice", {"accounted": 11.25, "span": 10.745}),
        ("1proc", 7.16, "passed", {}),  # and 4 times 10 ms
        ("1proc", 7.17, "not_timed", {"accounted": 11.25, "span": 11.795}),
        # Of two ranks 4 times 10 ms either way: 4.625 s, 5 % of 6.4 s are 0.32 s.
        ("2proc", 4.26, "timed_twice", {"accounted": 7.65, "span": 7.285}),
    ],
)
def test_seconds_counted_twice_or_never_fail(tmp_path, expect, cell, span_seconds, code, numbers):
    edit_segment(tmp_path, cell, span_seconds=span_seconds)
    expect(check_clock, code, cell, **numbers)


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
    tmp_path, expect, slow_seconds, num_positions, num_steps, fails
):
    """All segments have steps of 0.05 s, of 100 positions; but for the third of 2proc 0-8."""
    for cell in SECONDS:
        for part, first_step in (("0-8", 1), ("8-16", 1 + num_steps)):
            segment = segment_folder(tmp_path, cell, part)
            line = read_lines(segment)[0] | {"seconds": 0.05, "num_tokens": 90, "num_padding_tokens": 10}
            lines = [line | {"step": first_step + index} for index in range(num_steps)]
            if (cell, part) == ("2proc", "0-8"):
                lines[2] |= {"seconds": slow_seconds, "num_tokens": num_positions - 10}
            write_lines(segment, lines)
            seconds = sum(line["seconds"] for line in lines)
            spans = {"train_seconds": seconds, "span_seconds": seconds + 0.625}
            edit_segment(tmp_path, cell, part, num_steps=num_steps, **spans)
    wanted = {"step": 3, "seconds": slow_seconds, "median": 0.05, "slow_steps": 1}
    expect(check_clock, "slow_step" if fails else "passed", **wanted if fails else {})
