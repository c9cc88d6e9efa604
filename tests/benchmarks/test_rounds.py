import itertools
import math

import pytest

from benchmarks.rounds import GROWTH, LOOK_CONFIDENCE, Stopping, average_blocks, generate_rounds
from tasks.records.estimate import Estimate
from tests.simulated_machine import Noise, SimulatedMachine

ARMS = ["1gpu", "1gpu-ddp", "2gpu"]


class _Looks:
    """Intervals of a given relative half-width, and at which confidence they were asked for."""

    def __init__(self, *half_widths: float) -> None:
        self.half_widths = half_widths
        self.confidences: list[float] = []

    def __call__(self, confidence: float) -> dict[str, Estimate]:
        self.confidences.append(confidence)
        return {str(width): Estimate(value=2.0, low=2 - 2 * width, high=2 + 2 * width) for width in self.half_widths}


def test_a_round_is_an_order_of_all_arms_and_its_mirror_image() -> None:
    for order in itertools.islice(generate_rounds(ARMS, seed=0), 50):
        assert sorted(order[:3]) == sorted(ARMS)
        assert order == order[::-1]


def test_every_order_of_the_arms_comes_equally_often() -> None:
    counts = dict.fromkeys(itertools.permutations(ARMS), 0)
    for order in itertools.islice(generate_rounds(ARMS, seed=0), 6000):
        first, second, third = order[:3]
        counts[first, second, third] += 1
    # 1000 each; the standard deviation is 29.
    assert max(abs(count - 1000) for count in counts.values()) < 150


def test_rounds_follow_from_the_seed_alone() -> None:
    first, again, other = (list(itertools.islice(generate_rounds(ARMS, seed=seed), 20)) for seed in (7, 7, 8))
    assert first == again != other


def test_arms_must_be_given_and_differ() -> None:
    assert next(generate_rounds(["1gpu"], seed=0)) == ["1gpu", "1gpu"]
    for arms in ([], ["1gpu", "1gpu"]):
        with pytest.raises(ValueError, match="each once"):
            next(generate_rounds(arms, seed=0))


def test_a_linear_drift_cancels_within_a_round() -> None:
    order = next(generate_rounds(ARMS, seed=3))
    values = average_blocks(order, [1.0 + 0.1 * position for position in range(6)])
    assert values == pytest.approx(dict.fromkeys(ARMS, 1.25))
    with pytest.raises(ValueError, match="zip"):
        average_blocks(order, [1.0])


def test_it_looks_only_at_fixed_numbers_of_rounds() -> None:
    stopping, looks, looked_at = Stopping(target_half_width=0.02, max_seconds=1e9), _Looks(0.03), []
    for num_rounds in range(1, 100):
        before = len(looks.confidences)
        assert stopping.goes_on(num_rounds, seconds=float(num_rounds), look=looks)
        looked_at += [num_rounds] * (len(looks.confidences) - before)
    assert looked_at == [10, 15, 23, 35, 53, 80]
    assert all(later == math.ceil(earlier * GROWTH) for earlier, later in itertools.pairwise(looked_at))
    assert set(looks.confidences) == {LOOK_CONFIDENCE}
    assert stopping.reason == ""


def test_it_stops_once_the_widest_interval_is_narrow_enough() -> None:
    stopping, looks = Stopping(target_half_width=0.02, max_seconds=1e9), _Looks(0.021, 0.004)
    assert stopping.goes_on(10, seconds=10.0, look=looks)
    looks.half_widths = (0.019, 0.004)
    assert stopping.goes_on(14, seconds=14.0, look=looks)
    assert not stopping.goes_on(15, seconds=15.0, look=looks)
    assert stopping.reason == "interval narrow enough: +-1.9 % after 15 rounds"
    assert list(stopping.intervals) == ["0.019", "0.004"]


def test_a_round_that_would_end_after_the_budget_is_not_begun() -> None:
    stopping, looks = Stopping(target_half_width=0.02, max_seconds=45), _Looks(0.042)
    # 4 s a round: the 11th ends at 44 s, a 12th would at 48 s.
    assert stopping.goes_on(10, seconds=40.0, look=looks)
    assert not stopping.goes_on(11, seconds=44.0, look=looks)
    # 11 * (4.2 / 2)^2 = 48.5
    expected = "time budget of 45 s spent at +-4.2 % after 11 rounds; about 49 would be needed for +-2.0 %"
    assert stopping.reason == expected


def test_the_least_rounds_are_run_whatever_the_budget_says() -> None:
    stopping, looks = Stopping(target_half_width=0.02, max_seconds=45, min_rounds=8), _Looks(0.0395)
    assert all(stopping.goes_on(num_rounds, seconds=9.0 * num_rounds, look=looks) for num_rounds in range(1, 8))
    assert looks.confidences == []
    assert not stopping.goes_on(8, seconds=72.0, look=looks)
    assert stopping.reason.startswith("time budget of 45 s exceeded (72 s for the least number of rounds) at +-4.0 %")
    # 8 * (3.95 / 2)^2 = 31.2
    assert stopping.reason.endswith("about 32 would be needed for +-2.0 %")


def test_a_narrow_interval_at_the_end_of_the_budget_is_narrow_enough() -> None:
    stopping = Stopping(target_half_width=0.02, max_seconds=45)
    assert not stopping.goes_on(12, seconds=44.9, look=_Looks(0.0199))
    assert stopping.reason == "interval narrow enough: +-2.0 % after 12 rounds"


def test_a_rule_that_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="min_rounds must be at least 6"):
        Stopping(target_half_width=0.02, max_seconds=45, min_rounds=5)
    with pytest.raises(ValueError, match="target_half_width"):
        Stopping(target_half_width=2.0, max_seconds=45)


def test_the_simulated_machine_runs_at_its_true_times_but_for_the_noise() -> None:
    quiet = Noise(walk=0, thermal=0, jitter=0, hiccup_rate=0)
    machine = SimulatedMachine({"1gpu": 0.5, "2gpu": 0.25}, quiet, seed=0)
    assert machine.run_block("1gpu", 2) + machine.run_block("2gpu", 1) == [0.5, 0.5, 0.25]
    assert machine.now_seconds == 1.25
    steps = SimulatedMachine({"1gpu": 0.5}, Noise(), seed=0).run_block("1gpu", 2000)
    logs = [math.log(step) for step in steps]
    mean = math.fsum(logs) / len(logs)
    neighbours = sum((one - mean) * (other - mean) for one, other in itertools.pairwise(logs))
    assert neighbours / sum((one - mean) ** 2 for one in logs) > 0.5
    assert max(steps) > 1.5 * sorted(steps)[1000]
