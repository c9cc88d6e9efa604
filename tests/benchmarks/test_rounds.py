from benchmarks.rounds import LOOK_CONFIDENCE, Stopping
from tasks.records.estimate import Estimate


def _look(confidence):
    assert confidence == LOOK_CONFIDENCE
    return Estimate(value=2.0, low=2 - 2 * 0.042, high=2 + 2 * 0.042)


def test_it_looks_only_at_fixed_numbers_of_rounds():
    stopping, looked_at = Stopping(max_seconds=1e9), []
    for num_rounds in range(1, 100):
        stopping.interval = None
        assert stopping.goes_on(num_rounds, seconds=float(num_rounds), look=_look)
        looked_at += [num_rounds] * (stopping.interval is not None)
    assert looked_at == [10, 15, 23, 35, 53, 80]
    assert stopping.reason == ""


def test_a_round_that_would_end_after_the_budget_is_not_begun():
    stopping = Stopping(max_seconds=45)
    # 4 s a round: the 11th ends at 44 s, a 12th would at 48 s.
    assert stopping.goes_on(10, seconds=40.0, look=_look)
    assert not stopping.goes_on(11, seconds=44.0, look=_look)
    # 11 * (4.2 / 2)^2 = 48.5
    expected = "time budget of 45 s spent at ±4.2 % after 11 rounds; about 49 would be needed for ±2.0 %"
    assert stopping.reason == expected
