"""What measures the comparison of params.yaml again and again on this machine."""

import math

import pytest

from benchmarks.sessions import SessionSpeedup, find_scatter
from tasks.records.estimate import Estimate


def make_session(kind: str, value: float, half_width: float | None) -> SessionSpeedup:
    interval = None if half_width is None else Estimate(value, value * (1 - half_width), value * (1 + half_width))
    return SessionSpeedup(
        kind=kind, number=1, cell="2proc", interval=interval, all_turns=value, num_turns=12, num_quiet=12, seconds=1.0
    )


def test_sessions_scatter_by_the_logarithms_of_their_speedups_and_cover_the_mean_of_the_others() -> None:
    found = [make_session("a", value, 0.05) for value in (1.5, 1.56, 1.44, 1.8)] + [make_session("b", 1.5, None)]
    scatter = find_scatter("a", found)
    assert (scatter.num_sessions, scatter.num_told, scatter.num_covering) == (4, 4, 1)
    assert scatter.mean == pytest.approx((1.5 * 1.56 * 1.44 * 1.8) ** 0.25)
    assert scatter.half_width == pytest.approx(0.05)
    assert (find_scatter("b", found).num_told, math.isnan(find_scatter("b", found).scatter)) == (0, True)
