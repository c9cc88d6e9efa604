"""The defects, each made by one line of our own trainer or pipeline."""

from tests.museum.exhibits import (
    alike,
    blocks,
    mathematics,
    measuring,
    one_arm,
    resuming,
    searching,
    sharing,
    synchronisation,
    work,
)

EXHIBITS = [
    *synchronisation.EXHIBITS,
    *sharing.EXHIBITS,
    *work.EXHIBITS,
    *mathematics.EXHIBITS,
    *resuming.EXHIBITS,
    *alike.EXHIBITS,
    *one_arm.EXHIBITS,
    *measuring.EXHIBITS,
    *blocks.EXHIBITS,
    *searching.EXHIBITS,
]
"""In the order of the table."""
