"""Which ranges are timed: the first, unless another's rows are of other lengths; and how many steps a block has."""

import numpy as np
import pytest

from tasks.measure import select_timed_ranges
from tasks.measuring.bench import Bench

ROWS = [20, 40] * 10


@pytest.mark.parametrize(
    ("first", "second", "seq_len", "expected"),
    [
        (ROWS, [21, 41] * 10, 128, "a"),
        (ROWS, [30, 60] * 10, 128, "ab"),
        # Longer, but cut to the same.
        (ROWS, [30, 60] * 10, 20, "a"),
        # As many tokens, other lengths.
        (ROWS, [5, 55] * 10, 128, "ab"),
        # Too few rows for a step: they are timed only where no other has one.
        (ROWS, [100] * 5, 128, "a"),
        ([30] * 5, [30] * 20, 128, "b"),
        # Without lengths all are alike.
        ([0] * 20, [0] * 20, 128, "a"),
    ],
)
def test_all_ranges_are_timed_where_the_rows_of_one_are_not_as_long_as_the_firsts(
    tmp_path, first, second, seq_len, expected
):
    for name, lengths in (("a", first), ("b", second)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "row_ids.npy", np.arange(len(lengths)))
        if any(lengths):
            np.save(tmp_path / name / "offsets.npy", np.cumsum([0, *lengths]))
    assert select_timed_ranges(tmp_path, ["a", "b"], seq_len=seq_len, least_rows=8) == list(expected)


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
