import itertools
import math

from benchmarks.rounds import GROWTH, LOOK_CONFIDENCE, Stopping
from tasks.records.estimate import Estimate


class _Looks:
    """An interval of a given relative half-width, and at which confidence it was asked for."""

    def __init__(self, half_width):
        self.half_width = half_width
        self.confidences = []

    def __call__(self, confidence):
        self.confidences.append(confidence)
        return Estimate(value=2.0, low=2 - 2 * self.half_width, high=2 + 2 * self.half_width)


def test_it_looks_only_at_fixed_numbers_of_rounds():
    stopping, looks, looked_at = Stopping(max_seconds=1e9), _Looks(0.03), []
    for num_rounds in range(1, 100):
        before = len(looks.confidences)
        assert stopping.goes_on(num_rounds, seconds=float(num_rounds), look=looks)
        looked_at += [num_rounds] * (len(looks.confidences) - before)
    assert looked_at == [10, 15, 23, 35, 53, 80]
    assert all(later == math.ceil(earlier * GROWTH) for earlier, later in itertools.pairwise(looked_at))
    assert set(looks.confidences) == {LOOK_CONFIDENCE}
    assert stopping.reason == ""


def test_a_round_that_would_end_after_the_budget_is_not_begun():
    stopping, looks = Stopping(max_seconds=45), _Looks(0.042)
    # 4 s a round: the 11th ends at 44 s, a 12th would at 48 s.
    assert stopping.goes_on(10, seconds=40.0, look=looks)
    assert not stopping.goes_on(11, seconds=44.0, look=looks)
    # 11 * (4.2 / 2)^2 = 48.5
    expected = "time budget of 45 s spent at ±4.2 % after 11 rounds; about 49 would be needed for ±2.0 %"
    assert stopping.reason == expected
