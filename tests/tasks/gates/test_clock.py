"""The gate `Only steps were timed`, with figures worked out by hand.

In the comparison as written 1proc has 4 steps of 3, 3, 2 and 2 s, 2proc of 2, 2, 1.2 and 1.2 s, in 2 segments; each
segment also has 0.5 s of checkpoints and 0.125 s of log points, and the wall clock passed just that.
"""

from pathlib import Path
from typing import Any

import pytest

from tasks.gates.checks import check_gates
from tasks.records.gate import Gate
from tests.tasks.reporting.comparison import (
    PARAMS,
    SECONDS,
    edit_segment,
    edit_steps,
    outputs_of,
    read_lines,
    segment_folder,
    write_comparison,
    write_lines,
)


def gate_of(folder: Path, params: dict[str, Any]) -> Gate:
    return next(gate for gate in check_gates(outputs_of(folder, params)) if gate.name == "Only steps were timed")


def test_a_clock_that_runs_for_steps_alone_passes_and_says_so(tmp_path: Path, params: dict[str, Any]) -> None:
    gate = gate_of(tmp_path, params)
    assert gate.verdict == "passed"
    first, second = gate.findings
    assert first.numbers == {
        "cell": "1proc",
        "share_without_a_step": 4e-4,
        "train_seconds": 10.0,
        "seconds_without_a_step": 0.004,
        "timed_and_not_timed_seconds": 11.25,
        "wall_clock_seconds": 11.25,
        "slowest_step_in_medians": 1.2,
        "most_share_without_a_step": 0.05,
        "most_medians": 10.0,
    }
    assert second.numbers == first.numbers | {
        "cell": "2proc",
        "share_without_a_step": pytest.approx(0.004 / 6.4),
        "train_seconds": 6.4,
        "timed_and_not_timed_seconds": pytest.approx(7.65),
        "wall_clock_seconds": pytest.approx(7.65),
        "slowest_step_in_medians": 1.25,
    }


@pytest.mark.parametrize(
    ("cell", "others", "code", "numbers"),
    [
        # 20 ms of each step are the loop's own; 5 % of 6.4 s are 0.32 s.
        ("2proc", [0.33, 0.018], "passed", {}),
        ("2proc", [0.35, 0.02], "timed_without_a_step", {"seconds_without_a_step": 0.37, "train_seconds": 6.4}),
        ("2proc", [0.18, 0.19], "timed_without_a_step", {"step": 2, "seconds": 0.19}),
        ("1proc", [-0.3, -0.19], "passed", {}),
        ("1proc", [-0.3, -0.3], "clock_stood_still", {"seconds_untimed": 0.6, "step": 1}),
    ],
)
def test_seconds_in_which_no_step_ran_fail_beyond_5_percent(
    tmp_path: Path, params: dict[str, Any], cell: str, others: list[float], code: str, numbers: dict[str, float]
) -> None:
    for index, seconds in enumerate(others):
        edit_steps(tmp_path, cell, index=index, other_seconds=seconds)
    edit_segment(tmp_path, cell, other_seconds=sum(others) - 0.002)  # the other segment has 0.002
    found = gate_of(tmp_path, params).find_cell_finding(cell)
    assert found is not None
    assert found.code == code
    assert {name: found.numbers[name] for name in numbers} == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("cell", "span_seconds", "code", "accounted"),
    [
        # 1proc 0-8 adds up to 6.625 s; 5 % of its 10 s are 0.5 s.
        ("1proc", 6.13, "passed", None),
        ("1proc", 6.12, "timed_twice", 11.25),
        ("1proc", 7.16, "passed", None),  # and 4 times 10 ms
        ("1proc", 7.17, "not_timed", 11.25),
        # 2proc 0-8 adds up to 4.625 s; 5 % of its 6.4 s are 0.32 s, and 4 times 10 ms.
        ("2proc", 4.27, "passed", None),
        ("2proc", 4.26, "timed_twice", 7.65),
    ],
)
def test_seconds_counted_twice_or_never_fail(
    tmp_path: Path, params: dict[str, Any], cell: str, span_seconds: float, code: str, accounted: float | None
) -> None:
    edit_segment(tmp_path, cell, span_seconds=span_seconds)
    found = gate_of(tmp_path, params).find_cell_finding(cell)
    assert found is not None
    assert found.code == code
    if accounted is not None:
        other = 6.625 if cell == "1proc" else 4.625
        assert found.numbers["accounted"] == pytest.approx(accounted)
        assert found.numbers["span"] == pytest.approx(accounted - other + span_seconds)


def _of_many_steps(folder: Path, slow_seconds: float, *, num_positions: int) -> dict[str, Any]:
    """Write a comparison whose segments have 20 steps of 0.05 s, of 100 positions; but for the third of 2proc 0-8."""
    params = write_comparison(folder, params=PARAMS, seconds=SECONDS)
    for cell in SECONDS:
        for part, first_step in (("0-8", 1), ("8-16", 21)):
            segment = segment_folder(folder, cell, part)
            line = read_lines(segment)[0]
            lines = [
                line | {"step": first_step + index, "seconds": 0.05, "num_tokens": 90, "num_padding_tokens": 10}
                for index in range(20)
            ]
            is_slow = (cell, part) == ("2proc", "0-8")
            if is_slow:
                lines[2] |= {"seconds": slow_seconds, "num_tokens": num_positions - 10}
            write_lines(segment, lines)
            seconds = sum(line["seconds"] for line in lines)
            spans = {"train_seconds": seconds, "span_seconds": seconds + 0.625}
            edit_segment(folder, cell, part, num_steps=20, **spans)
    return params


@pytest.mark.parametrize(
    ("slow_seconds", "num_positions", "verdict"),
    [
        (2.1, 100, "failed"),
        (2.1, 2000, "passed"),  # 20 times the positions, so 2.1 times as slow
        (0.51, 100, "failed"),  # 10.2 times the median, and 0.46 s are more than 10 % of 2.46 s
        (0.49, 100, "passed"),  # 9.8 times the median
    ],
)
def test_a_step_of_over_10_times_the_median_fails_with_its_number_and_seconds(
    tmp_path: Path, slow_seconds: float, num_positions: int, verdict: str
) -> None:
    gate = gate_of(tmp_path, _of_many_steps(tmp_path, slow_seconds, num_positions=num_positions))
    assert gate.verdict == verdict
    if slow_seconds == 2.1 and verdict == "failed":
        found = gate.findings[1]
        wanted = {"step": 3, "seconds": 2.1, "median": 0.05, "slow_steps": 1}
        assert (found.code, found.numbers | wanted) == ("slow_step", found.numbers)
        assert [found.numbers["slowest_step_in_medians"] for found in gate.findings] == [1.0, pytest.approx(42.0)]


def test_a_slow_step_that_hardly_changes_the_whole_passes(tmp_path: Path) -> None:
    params = _of_many_steps(tmp_path, 0.6, num_positions=100)
    for part in ("0-8", "8-16"):
        segment = segment_folder(tmp_path, "2proc", part)
        lines = read_lines(segment)
        longer = [line | {"step": 1000 * index + line["step"]} for index in range(4) for line in lines[3:]]
        write_lines(segment, [*lines, *longer])
        seconds = sum(line["seconds"] for line in [*lines, *longer])
        spans = {"train_seconds": seconds, "span_seconds": seconds + 0.625}
        edit_segment(tmp_path, "2proc", part, num_steps=20 + len(longer), **spans)
    gate = gate_of(tmp_path, params)
    # 12 times the median, but 0.55 s of 9.35 s.
    assert gate.verdict == "passed"
    assert [found.numbers["slowest_step_in_medians"] for found in gate.findings] == [1.0, pytest.approx(12.0)]
