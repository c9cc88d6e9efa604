"""The first rows of a range, for short runs of the real training."""

import numpy as np
import pytest

from tasks.measure import write_sample
from tests.tiny import make_slice
from training.data.batches import open_slice


@pytest.fixture
def slices(tmp_path):
    """A folder with one slice of 80 ragged rows, which begins at row 100 of the data set."""
    make_slice(tmp_path / "100-180", num_rows=80, first_row=100)
    return tmp_path


def test_the_sample_is_the_first_rows_with_a_partial_last_batch(slices, tmp_path):
    made = write_sample(slices / "100-180", tmp_path / "sample", num_steps=4, batch_size=8)
    assert made == ("100-129", 4)  # 3 x 8 + 5 rows
    whole, part = open_slice(slices / "100-180"), open_slice(tmp_path / "sample")
    assert part.row_ids.tolist() == list(range(100, 129))
    for row in range(29):
        np.testing.assert_array_equal(part.row(row, 1000), whole.row(row, 1000))


def test_a_short_range_is_taken_whole(slices, tmp_path):
    assert write_sample(slices / "100-180", tmp_path / "s", num_steps=8, batch_size=32) == ("100-180", 3)
