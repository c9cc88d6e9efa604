"""Ledgers of finished segments, read by nothing of the product but what it says of their layout."""

import numpy as np

from training.record.ledger_file import LEDGER, LEDGER_COLUMNS, LEDGER_DTYPE


def read_ledger(segment):
    """Return the columns of the segment's ledger by name."""
    entries = np.fromfile(segment / LEDGER, LEDGER_DTYPE).reshape(-1, len(LEDGER_COLUMNS))
    return dict(zip(LEDGER_COLUMNS, entries.T, strict=True))
