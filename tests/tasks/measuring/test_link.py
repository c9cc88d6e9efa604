"""All-reduces of sizes and numbers of ranks that were not measured, against the ring that they come from."""

from typing import Any

import numpy as np
import pytest

from tasks.measuring.link import Link
from tasks.measuring.probe import Swept


def _swept(seconds: Any, world_sizes: tuple[int, ...], growth: float = 1.0) -> Link:
    sizes = [2.0**power for power in range(16, 30)]
    sweeps = {n: tuple(Swept(num_bytes=size, seconds=(seconds(size, n),)) for size in sizes) for n in world_sizes}
    drawn = {n: np.array([[point.seconds[0] for point in points]]) for n, points in sweeps.items()}
    return Link(sweeps, drawn, growth=np.array([growth]))


def _ring(size: float, n: int, *, constant: float = 0.0, hop: float = 50e-6) -> float:
    return constant + hop * (n - 1) + 2 * (n - 1) / n * size / 4e9


def test_a_ring_seen_at_two_ranks_is_known_at_any_number() -> None:
    link = _swept(_ring, (2,))
    for n in (4, 8, 64):
        for size in (2**16, 2**22, 2**29):
            assert link.seconds(size, n)[0] == pytest.approx(_ring(size, n), rel=1e-6)


@pytest.mark.parametrize("growth", [0.0, 0.5, 1.0])
def test_latency_seen_at_one_number_of_ranks_grows_as_far_as_is_said(growth: float) -> None:
    link = _swept(_ring, (2,), growth)
    for n in (2, 4, 64):
        expected = 50e-6 * (n - 1) ** growth + 2 * (n - 1) / n * 2**20 / 4e9
        assert link.seconds(2**20, n)[0] == pytest.approx(expected, rel=1e-6)


def test_two_numbers_of_ranks_tell_a_constant_from_seconds_per_hop() -> None:
    def seconds(size: float, n: int) -> float:
        return _ring(size, n, constant=1e-3)

    link = _swept(seconds, (2, 4))
    for n in (3, 8):
        assert link.seconds(2**18, n)[0] == pytest.approx(seconds(2**18, n), rel=1e-3)


def test_what_a_ring_does_not_explain_fades_from_one_measured_number_of_ranks_to_the_next() -> None:
    def seconds(size: float, n: int) -> float:
        return _ring(size, n) * {2: 1.0, 8: 4.0}.get(n, 2.0)

    found = _swept(seconds, (2, 8)).seconds(2**24, 4)[0]
    # Halfway by ratio the excess is the geometric mean, whatever ring was fitted to the two.
    ring = _swept(_ring, (2, 8)).seconds(2**24, 4)[0]
    assert 1.0 < found / ring < 4.0
    assert found == pytest.approx(2.0 * ring, rel=0.1)


def test_between_two_sizes_and_beyond_the_largest_the_ring_is_met() -> None:
    link = _swept(_ring, (2,))
    for size in (3 * 2**17, 5 * 2**20, 3 * 2**28, 2**31):
        assert link.seconds(size, 2)[0] == pytest.approx(_ring(size, 2), rel=0.02)


def test_a_sweep_that_is_no_ring_is_still_met_where_it_was_measured() -> None:
    def seconds(size: float, n: int) -> float:
        return 1e-4 * n + (size / 1e9) ** 0.8

    link = _swept(seconds, (2, 4))
    for n in (2, 4):
        assert link.seconds(2**20, n)[0] == pytest.approx(seconds(2**20, n), rel=1e-9)


def test_more_bytes_never_take_less_time() -> None:
    sweeps = {2: tuple(Swept(num_bytes=size, seconds=(1.0,)) for size in (1.0, 2.0, 4.0))}
    link = Link(sweeps, {2: np.array([[1.0, 3.0, 2.0]])}, growth=np.ones(1))
    assert link.seconds(4.0, 2)[0] == pytest.approx(3.0)


def test_a_sweep_without_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one size"):
        Link({2: ()}, {2: np.zeros((1, 0))}, growth=np.ones(1))
