"""Which ranges are timed: the first, unless another's rows are of other lengths; and how many steps a block has."""

import numpy as np
import pytest

from tasks.measure import select_timed_ranges
from tasks.measuring.bench import Bench


def write(folder, lengths):
    folder.mkdir()
    np.save(folder / "row_ids.npy", np.arange(len(lengths)))
    np.save(folder / "offsets.npy", np.cumsum([0, *lengths]))


@pytest.mark.parametrize(
    ("second", "seq_len", "expected"),
    [
        ([20, 40] * 10, 128, ["0-20"]),
        ([21, 41] * 10, 128, ["0-20"]),
        ([30, 60] * 10, 128, ["0-20", "20-40"]),
        # Longer, but cut to the same.
        ([30, 60] * 10, 20, ["0-20"]),
        # As many tokens, other lengths.
        ([5, 55] * 10, 128, ["0-20", "20-40"]),
        # Too few rows for a step.
        ([100] * 5, 128, ["0-20"]),
    ],
)
def test_all_ranges_are_timed_where_the_rows_of_one_are_not_as_long_as_the_firsts(tmp_path, second, seq_len, expected):
    write(tmp_path / "0-20", [20, 40] * 10)
    write(tmp_path / "20-40", second)
    assert select_timed_ranges(tmp_path, ["0-20", "20-40"], seq_len=seq_len, least_rows=8) == expected


@pytest.mark.parametrize(("second", "expected"), [(20, ["5-25"]), (6, ["0-5"])])
def test_a_first_range_without_a_full_step_is_timed_only_where_no_other_has_one(tmp_path, second, expected):
    write(tmp_path / "0-5", [30] * 5)
    write(tmp_path / "5-25", [30] * second)
    assert select_timed_ranges(tmp_path, ["0-5", "5-25"], seq_len=128, least_rows=8) == expected


def test_rows_without_lengths_are_all_alike(tmp_path):
    for name in ("0-20", "20-40"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "row_ids.npy", np.arange(20))
    assert select_timed_ranges(tmp_path, ["0-20", "20-40"], seq_len=128, least_rows=8) == ["0-20"]


def test_turns_go_round_all_ranges_in_proportion_to_their_steps_and_stay_in_one():
    bench = Bench({}, seed=1)
    bench._num_steps, bench.steps_per_block = [30, 10], 6
    found = []
    for _ in range(40):
        steps = bench.choose_steps()
        segment, own = bench._locate_steps(steps)
        assert len(set(own)) == 6
        assert all(1 <= step <= bench._num_steps[segment] for step in own)
        assert {bench._locate_steps([step])[0] for step in steps} == {segment}
        found.append(segment)
    assert found.count(0) == pytest.approx(30, abs=1)
