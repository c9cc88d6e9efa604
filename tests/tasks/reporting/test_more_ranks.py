"""What a line says of more ranks, against arithmetic by hand."""

import pytest

from tasks.reporting.more_ranks import carry_on, compute_growth
from tests.tasks.reporting.measured import link


@pytest.mark.parametrize(
    ("latency", "world_size", "growth"),
    [
        # 2 messages x 3 ms, and 1e6 bytes x 1e-9 s: hops x 1 -> 3 -> 7, bytes (N - 1) / N from 1/2 to 3/4 and 7/8.
        (0.0, 8, 1.75),
        (3e-3, 4, (6 * 3 + 1 * 1.5) / 7),
        (3e-3, 8, (6 * 7 + 1 * 1.75) / 7),
        (3e-3, 2, 1.0),
    ],
)
def test_latency_grows_with_the_hops_and_bytes_as_in_a_ring(latency, world_size, growth):
    found = compute_growth(link(latency_seconds=latency), world_size, num_messages=2, num_bytes=1e6)
    assert found == pytest.approx(growth)


def test_a_link_without_a_line_says_nothing():
    for name in ("latency_seconds", "seconds_per_byte"):
        assert compute_growth(link(**{name: None}), 4, num_messages=1, num_bytes=1e6) is None
    assert compute_growth(link(), 4, num_messages=1, num_bytes=0.0) is None


def test_a_speedup_is_carried_on_by_what_it_loses():
    # 1.6x on 2: a step takes 0.625 of one rank's, 0.125 of it lost; on 4 that is 0.25 + 1.5 x 0.125.
    assert carry_on(1.6, ranks=2, more=4, growth=1.5, is_weak=False) == pytest.approx(1 / 0.4375)
    # Weak: 2 / 1.6 = 1.25 steps' time for as many rows per rank, 0.25 of it lost.
    assert carry_on(1.6, ranks=2, more=4, growth=1.5, is_weak=True) == pytest.approx(4 / 1.375)
    # What is above linear loses nothing, and is not made more of.
    assert carry_on(2.2, ranks=2, more=4, growth=1.5, is_weak=False) == pytest.approx(4.0)
