import numpy as np
import pytest

from tasks.gates import ratios


def test_speedup_is_baseline_seconds_over_seconds() -> None:
    assert ratios.compute_speedup(10.0, 6.4) == 1.5625
    with pytest.raises(ValueError, match="above 0"):
        ratios.compute_speedup(10.0, 0.0)


def test_parallel_efficiency_is_the_share_of_linear_speedup() -> None:
    assert ratios.compute_parallel_efficiency(1.5625, 2) == 0.78125
    # From 2 to 8 ranks linear is 4x.
    assert ratios.compute_parallel_efficiency(3.0, 8, baseline_world_size=2) == 0.75
    with pytest.raises(ValueError, match="at least 1"):
        ratios.compute_parallel_efficiency(1.0, 0)


def test_karp_flatt_recovers_the_serial_fraction_of_amdahls_law() -> None:
    serial = 0.1
    for world_size in (2, 4, 8):
        amdahl = 1 / (serial + (1 - serial) / world_size)
        assert ratios.compute_karp_flatt(amdahl, world_size) == pytest.approx(serial)
    assert ratios.compute_karp_flatt(1.0, 1) is None


def test_perplexity_too_large_for_a_float_is_none() -> None:
    assert ratios.compute_perplexity(0.0) == 1.0
    assert ratios.compute_perplexity(1e6) is None


def test_relative_differences_of_equal_zeros_are_zero() -> None:
    found = ratios.compute_relative_differences(np.array([1.1, 0.0, 1.0]), np.array([1.0, 0.0, 0.0]))
    assert found.tolist() == [pytest.approx(0.1), 0.0, np.inf]


def test_a_long_curve_is_thinned_to_means_of_neighbouring_steps() -> None:
    steps = np.arange(1, 100_001)
    per_point, ends, means = ratios.thin_out_losses(steps, steps.astype(np.float64), max_points=1000)
    assert (per_point, len(ends), ends[0], ends[-1]) == (100, 1000, 100, 100_000)
    assert means[0] == 50.5
    steps, losses = np.array([1, 2, 3]), np.array([3.0, 5.0, 9.0])
    assert ratios.thin_out_losses(steps, losses, max_points=2) == (2, [2, 3], [4.0, 9.0])
    assert ratios.thin_out_losses(steps[:2], losses[:2], max_points=2) == (1, [1, 2], [3.0, 5.0])
