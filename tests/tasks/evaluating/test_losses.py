import numpy as np
import pytest

from tasks.gates.correctness import compute_relative_differences
from tasks.records.evaluation import compute_perplexity
from tasks.reporting.collect import make_loss_curve


def test_perplexity_too_large_for_a_float_is_none():
    assert compute_perplexity(0.0) == 1.0
    assert compute_perplexity(1e6) is None


def test_relative_differences_of_equal_zeros_are_zero():
    found = compute_relative_differences(np.array([1.1, 0.0, 1.0]), np.array([1.0, 0.0, 0.0]))
    assert found.tolist() == [pytest.approx(0.1), 0.0, np.inf]


def test_a_long_curve_is_thinned_to_means_of_neighbouring_steps():
    steps, losses = np.array([1, 2, 3]), np.array([3.0, 5.0, 9.0])
    for number, thinned in ((3, (2, [2, 3], [4.0, 9.0])), (2, (1, [1, 2], [3.0, 5.0]))):
        curve = make_loss_curve("one", steps[:number], losses[:number], max_points=2)
        assert (curve.steps_per_point, curve.steps, curve.losses) == thinned
