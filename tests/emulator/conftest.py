"""This process as the only rank, and slices: what the tests of training/ share."""

from tests.training.conftest import alone, rows, signals_as_before, slices, train_here

__all__ = ["alone", "rows", "signals_as_before", "slices", "train_here"]
