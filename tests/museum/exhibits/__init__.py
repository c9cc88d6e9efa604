"""The defects, each made by one line of our own trainer or pipeline."""

from tests.museum.exhibits import alike, blocks, mathematics, measuring, resuming, synchronisation, work

EXHIBITS = [
    *synchronisation.EXHIBITS,
    *work.EXHIBITS,
    *mathematics.EXHIBITS,
    *resuming.EXHIBITS,
    *alike.EXHIBITS,
    *measuring.EXHIBITS,
    *blocks.EXHIBITS,
]
"""In the order of the table."""
