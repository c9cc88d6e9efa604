"""Rows on disk and micro-batches in memory."""

import numpy as np
import pytest

from tests.tiny import write_slice
from training.data.batches import IGNORED_LABEL, open_slice


def test_labels_are_the_next_tokens_and_nothing_is_predicted_from_padding(tmp_path):
    source = open_slice(write_slice(tmp_path, [[5, 6, 7], [9]], first_row=20))
    batch = source.collate([0, 1], seq_len=8)
    ignored = IGNORED_LABEL
    assert batch.input_ids.tolist() == [[5, 6, 7, 0, 0, 0, 0, 0], [9, 0, 0, 0, 0, 0, 0, 0]]
    assert batch.labels.tolist() == [[6, 7] + [ignored] * 6, [ignored] * 8]
    assert batch.row_ids.tolist() == [20, 21]
    assert batch.sample_num_tokens.tolist() == [2, 0]
    assert (batch.num_tokens, batch.num_samples, batch.num_padding_tokens) == (2, 2, 12)
    # What a step's plan goes by, before a micro-batch is made.
    assert source.num_targets(8).tolist() == batch.sample_num_targets.tolist() == [2, 0]


def test_slice_whose_arrays_do_not_belong_together_is_refused(tmp_path):
    folder = write_slice(tmp_path, [[1, 2], [3]])
    np.save(folder / "row_ids.npy", np.arange(5))
    with pytest.raises(ValueError, match="do not belong together"):
        open_slice(folder)
