"""Rows that hold what another row holds, counted by hash; memory does not grow with the rows."""

import hashlib

import numpy as np

from tasks.params.sources import RowRange
from tasks.records.sorted_numbers import SortedNumbers, read_windows


class RepeatedRows:
    """Takes what each row holds, and counts."""

    def __init__(self, heldout: RowRange | None) -> None:
        """`heldout`: which rows are held out; None: those come later, from a source of their own."""
        self._heldout = range(0) if heldout is None else range(heldout.start, heldout.end)
        self._are_others_trained_on = True
        self._inside, self._outside = SortedNumbers(), SortedNumbers()

    def begin_heldout(self, heldout: RowRange) -> None:
        """What comes from here on are rows of the source that the held-out ones have; others of it count nowhere."""
        self._heldout, self._are_others_trained_on = range(heldout.start, heldout.end), False

    def add(self, row_id: int, content: bytes) -> None:
        """Take a row that is not left out."""
        if row_id not in self._heldout and not self._are_others_trained_on:
            return
        key = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big", signed=True)
        (self._inside if row_id in self._heldout else self._outside).add(key)

    def count(self) -> dict[str, int]:
        """Return `num_duplicate_rows` and `num_heldout_rows_seen` (tasks/data/sources/row_store.py)."""
        num_duplicates = num_seen = 0
        for inside, outside in read_windows(self._inside, self._outside):
            num_duplicates += inside.size + outside.size - np.union1d(inside, outside).size
            num_seen += int(np.isin(inside, outside).sum())
        return {"num_duplicate_rows": num_duplicates, "num_heldout_rows_seen": num_seen}
