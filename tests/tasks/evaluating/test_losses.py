import numpy as np

from tasks.records.evaluation import compute_perplexity
from tasks.reporting.collect import make_loss_curve


def test_perplexity_too_large_for_a_float_is_none():
    assert compute_perplexity(0.0) == 1.0
    assert compute_perplexity(1e6) is None


def test_a_long_curve_is_thinned_to_means_of_neighbouring_steps():
    curve = make_loss_curve("one", np.array([1, 2, 3]), np.array([3.0, 5.0, 9.0]), max_points=2)
    assert (curve.steps_per_point, curve.steps, curve.losses) == (2, [2, 3], [4.0, 9.0])
