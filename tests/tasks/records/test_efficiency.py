import pytest

from tasks.records import efficiency
from tests.tasks.reporting.measured import estimate


def test_speedup_is_baseline_seconds_over_seconds() -> None:
    assert efficiency.compute_speedup(10.0, 6.4) == 1.5625
    with pytest.raises(ValueError, match="above 0"):
        efficiency.compute_speedup(10.0, 0.0)


def test_parallel_efficiency_is_the_share_of_linear_speedup() -> None:
    assert efficiency.compute_parallel_efficiency(1.5625, 2) == 0.78125
    # From 2 to 8 ranks linear is 4x.
    assert efficiency.compute_parallel_efficiency(3.0, 8, baseline_world_size=2) == 0.75
    with pytest.raises(ValueError, match="at least 1"):
        efficiency.compute_parallel_efficiency(1.0, 0)


def test_karp_flatt_recovers_the_serial_fraction_of_amdahls_law() -> None:
    serial = 0.1
    for world_size in (2, 4, 8):
        amdahl = 1 / (serial + (1 - serial) / world_size)
        assert efficiency.compute_karp_flatt(amdahl, world_size) == pytest.approx(serial)
    assert efficiency.compute_karp_flatt(1.0, 1) is None


def test_efficiency_counts_how_many_times_more_ranks() -> None:
    share = efficiency.estimate_efficiency(estimate(1.5, 0.1), 8, 4)
    assert (share.value, share.low, share.high) == (0.75, pytest.approx(0.675), pytest.approx(0.825))
