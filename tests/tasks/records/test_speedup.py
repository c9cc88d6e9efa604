"""What follows from a speedup, recomputed by hand."""

import pytest

from tasks.records import estimate
from tasks.records.estimate import Estimate


def _speedup(value, world_size, baseline_world_size=1):
    found = Estimate(value, 0.9 * value, 1.1 * value)
    return estimate.make_speedup(
        found, of_all_turns=found, of_medians=value, baseline_step_seconds=1.0, world_size=world_size,
        baseline_world_size=baseline_world_size,
    )  # fmt: skip


def test_efficiency_is_the_share_of_linear_and_its_inverse_what_the_speedup_costs():
    # From 2 to 8 ranks linear is 4x.
    share = _speedup(3.0, 8, 2).parallel_efficiency
    assert (share.value, share.low, share.high) == (0.75, pytest.approx(0.675), pytest.approx(0.825))
    cost = _speedup(3.0, 8, 2).device_time
    assert (cost.value, cost.low, cost.high) == pytest.approx((1 / 0.75, 1 / 0.825, 1 / 0.675))
    with pytest.raises(ValueError, match="at least 1"):
        _speedup(1.0, 0)


def test_karp_flatt_recovers_the_serial_fraction_of_amdahls_law():
    serial = 0.1
    for world_size in (2, 4, 8):
        amdahl = 1 / (serial + (1 - serial) / world_size)
        assert _speedup(amdahl, world_size).karp_flatt == pytest.approx(serial)
    assert _speedup(1.0, 1).karp_flatt is _speedup(1.5, 4, 2).karp_flatt is None
