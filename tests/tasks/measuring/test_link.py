"""The line through the sizes of a sweep."""

import pytest

from tasks.measuring.session import fit_line

SIZES = [2.0**power for power in range(16, 30)]


@pytest.mark.parametrize(
    ("sizes", "seconds", "line"),
    [
        (SIZES, [2e-3 + size * 1e-10 for size in SIZES], (2e-3, 1e-10)),
        # Larger sizes were faster for each byte: the line through them would begin below 0.
        ([1.0, 2.0], [1.0, 4.0], (0.0, 1.2)),
        # A link that waits far longer than it sends: noise alone says that more bytes took less.
        ([1.0, 2.0, 4.0], [15.01e-3, 15.0e-3, 14.99e-3], (15e-3, 0.0)),
        ([4.0], [2.0], (0.0, 0.5)),
    ],
)
def test_a_sweep_has_a_latency_and_seconds_per_byte_neither_below_0(sizes, seconds, line):
    assert fit_line(sizes, seconds) == pytest.approx(line, rel=1e-3)
