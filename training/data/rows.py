"""What a workload has to say of its rows, so that plan, loop and measurement need not know what is in them."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from training.data.batches import MicroBatch


class Rows(Protocol):
    """The rows of one range, as a workload opens them: what they weigh, and micro-batches of them."""

    @property
    def row_ids(self) -> np.ndarray:
        """(num_rows,) int64: position of each row in the data set."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def lengths(self, seq_len: int) -> np.ndarray:
        """Return how long each row is, as a sequence of at most `seq_len`: (num_rows,) int64."""

    def num_tokens(self, seq_len: int) -> np.ndarray:
        """Return what each row counts in a throughput, in the workload's UNIT: (num_rows,) int64."""

    def num_targets(self, seq_len: int) -> np.ndarray:
        """Return what each row weighs in the loss: (num_rows,) int64."""

    def collate(self, rows: Sequence[int], *, seq_len: int, is_packed: bool = False) -> MicroBatch:
        """Return the rows as one micro-batch."""

    def make_dummy_micro_batch(self, seq_len: int) -> MicroBatch:
        """Return a micro-batch that costs little and weighs nothing."""
