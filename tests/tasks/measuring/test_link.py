"""The line through the sizes of a sweep."""

import pytest

from tasks.measuring.session import fit_line

SIZES = [2.0**power for power in range(16, 30)]


@pytest.mark.parametrize(("latency", "per_byte"), [(50e-6, 1 / 4e9), (0.0, 1e-9), (2e-3, 1e-10)])
def test_latency_and_seconds_per_byte_of_a_line_are_found(latency: float, per_byte: float) -> None:
    found = fit_line(SIZES, [latency + size * per_byte for size in SIZES])
    assert found == (pytest.approx(latency, abs=1e-9), pytest.approx(per_byte))


def test_noise_makes_no_latency_below_0_and_one_size_tells_none() -> None:
    # Larger sizes were faster for each byte: the line through them would begin below 0.
    assert fit_line([1.0, 2.0], [1.0, 4.0])[0] == 0.0
    # A link that waits far longer than it sends: noise alone says that more bytes took less.
    assert fit_line([1.0, 2.0, 4.0], [15.01e-3, 15.0e-3, 14.99e-3]) == (pytest.approx(15e-3, rel=1e-3), 0.0)
    assert fit_line([4.0], [2.0]) == (0.0, pytest.approx(0.5))
