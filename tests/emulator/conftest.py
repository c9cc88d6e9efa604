"""This process as the only rank, and slices: what the tests of training/ share."""

from tests.training.conftest import alone, slices, train_here

__all__ = ["alone", "slices", "train_here"]
