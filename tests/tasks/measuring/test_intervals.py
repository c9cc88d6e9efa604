"""The intervals cover the truth as often as they say, on a machine that drifts; by hand where that is possible."""

import itertools
import math
import statistics

import numpy as np
import pytest

from tasks.measuring import intervals
from tasks.measuring.interleaving import Stopping, average_blocks, generate_rounds
from tasks.measuring.intervals import Interval, bootstrap_median, bootstrap_median_ratio, count_needed_trials
from tests.simulated_machine import Noise, SimulatedMachine

NUM_EXPERIMENTS = 200
STEPS_PER_BLOCK = 6
STEP_SECONDS = 0.08


def _measure(truth: float, seed: int, noise: Noise) -> tuple[Interval, Stopping, int]:
    """Measure the ratio 1gpu / 2gpu as the stage does, until the stopping rule ends it."""
    machine = SimulatedMachine({"1gpu": STEP_SECONDS * truth, "2gpu": STEP_SECONDS}, noise, seed)
    stopping = Stopping(target_half_width=0.02, max_seconds=90)
    seconds: dict[str, list[float]] = {"1gpu": [], "2gpu": []}

    def look(confidence: float) -> dict[str, Interval]:
        ratio = bootstrap_median_ratio(
            seconds["1gpu"], seconds["2gpu"], seed=seed, confidence=confidence, num_draws=2000
        )
        return {"2gpu": ratio}

    for num_rounds, order in enumerate(generate_rounds(["1gpu", "2gpu"], seed=seed), start=1):
        blocks = [statistics.fmean(machine.run_block(arm, STEPS_PER_BLOCK)) for arm in order]
        for arm, value in average_blocks(order, blocks).items():
            seconds[arm].append(value)
        if not stopping.goes_on(num_rounds, seconds=machine.now_seconds, look=look):
            return stopping.intervals["2gpu"], stopping, num_rounds
    raise AssertionError("rounds end only by the stopping rule")


def _measure_one_after_the_other(truth: float, seed: int, noise: Noise, num_rounds: int) -> Interval:
    """Measure the same ratio with as many blocks, all of one arm first."""
    machine = SimulatedMachine({"1gpu": STEP_SECONDS * truth, "2gpu": STEP_SECONDS}, noise, seed)
    seconds = {
        arm: [statistics.fmean(machine.run_block(arm, 2 * STEPS_PER_BLOCK)) for _ in range(num_rounds)]
        for arm in ("1gpu", "2gpu")
    }
    return bootstrap_median_ratio(seconds["1gpu"], seconds["2gpu"], seed=seed, confidence=0.97, num_draws=2000)


@pytest.mark.parametrize("truth", [1.0, 1.34, 1.9])
def test_interval_covers_the_truth_of_interleaved_arms_under_the_stopping_rule(truth: float) -> None:
    found = [_measure(truth, seed, Noise()) for seed in range(NUM_EXPERIMENTS)]
    covered = sum(interval.contains(truth) for interval, _, _ in found) / NUM_EXPERIMENTS
    lengths = [num_rounds for _, _, num_rounds in found]
    assert 0.92 <= covered <= 0.98, f"{covered:.1%} covered, {statistics.fmean(lengths):.0f} rounds on average"
    # Both ways to end were in it, or the rule was not what was proven.
    reasons = {stopping.reason.split(":")[0].split(" of")[0] for _, stopping, _ in found}
    assert reasons == {"interval narrow enough", "time budget"}


@pytest.mark.parametrize("truth", [1.0, 1.34, 1.9])
def test_interval_of_arms_that_ran_one_after_the_other_misses_the_truth(truth: float) -> None:
    found = [_measure_one_after_the_other(truth, seed, Noise(), 30) for seed in range(NUM_EXPERIMENTS)]
    covered = sum(interval.contains(truth) for interval in found) / NUM_EXPERIMENTS
    assert covered < 0.75, f"{covered:.1%} covered"


def test_turns_of_many_arms_cover_a_ratio_at_the_least_number_of_rounds() -> None:
    # As advice runs its changes: seven arms, each interval at 95 % for all together.
    arms, confidence = [f"change {number}" for number in range(7)], 1 - 0.05 / 6
    truths = {arm: STEP_SECONDS * (1 + 0.05 * place) for place, arm in enumerate(arms)}
    missed = []
    for seed in range(NUM_EXPERIMENTS):
        machine, blocks = SimulatedMachine(truths, Noise(), seed), {arm: list[float]() for arm in arms}
        for order in itertools.islice(generate_rounds(arms, seed=seed), math.ceil(count_needed_trials(confidence) / 2)):
            for arm in order:
                blocks[arm].append(statistics.fmean(machine.run_block(arm, STEPS_PER_BLOCK)))
        missed += [
            not bootstrap_median_ratio(blocks[arms[0]], blocks[arm], seed=seed, confidence=confidence, num_draws=2000)
            .contains(truths[arms[0]] / truths[arm])
            for arm in arms[1:]
        ]  # fmt: skip
    assert 0 < statistics.fmean(missed) < 0.02


def _difference_of_medians(minuend: list[float], subtrahend: list[float], *, seed: int) -> Interval:
    arms = {"minuend": minuend, "subtrahend": subtrahend}
    return intervals.bootstrap_statistic(arms, lambda of: of["minuend"] - of["subtrahend"], seed=seed, num_draws=2000)


def test_a_fixed_number_of_trials_covers_a_difference_of_medians() -> None:
    covered = []
    for seed in range(NUM_EXPERIMENTS):
        random = np.random.default_rng(seed)
        level = random.lognormal(0, 0.1, size=20)
        slow, fast = (level * true * random.lognormal(0, 0.03, size=20) for true in (0.107, 0.08))
        covered.append(_difference_of_medians(slow.tolist(), fast.tolist(), seed=seed).contains(0.027))
    assert 0.92 <= statistics.fmean(covered) <= 0.98


def test_what_slows_whole_rounds_down_does_not_widen_the_interval() -> None:
    random = np.random.default_rng(0)
    quiet = random.lognormal(0, 0.01, size=(2, 30))
    drifting = quiet * np.exp(random.normal(0, 0.3, size=30))
    calm, stormy = (bootstrap_median_ratio(*pair.tolist(), seed=1) for pair in (quiet, drifting))
    assert (calm.value, calm.low, calm.high) == pytest.approx((stormy.value, stormy.low, stormy.high), rel=1e-12)


def test_levelled_ratio_is_that_of_the_middle_round() -> None:
    # Levels 2, 4, 1, 12, 6, 3, 5; the ratios in order: 0.25, 0.5, 1, 1.21, 1.44, 4, 9. Its median is 1.21.
    ratios = [4.0, 0.25, 1.44, 9.0, 1.0, 1.21, 0.5]
    levels = [2.0, 4.0, 1.0, 12.0, 6.0, 3.0, 5.0]
    above = [level * ratio**0.5 for level, ratio in zip(levels, ratios, strict=True)]
    below = [level / ratio**0.5 for level, ratio in zip(levels, ratios, strict=True)]
    assert bootstrap_median_ratio(above, below, seed=0).value == pytest.approx(1.21)
    # Medians of the levelled rounds, 1.1 and 1 / 1.1, times the median level, 4.
    assert _difference_of_medians(above, below, seed=0).value == pytest.approx(4 * (1.1 - 1 / 1.1))


def test_interval_of_one_arm_is_that_of_its_order_statistics() -> None:
    values = [float(value) for value in range(1, 21)]
    found = bootstrap_median(values, seed=0)
    assert found.value == pytest.approx(10.5)
    # 20 trials: the 6th to the 15th cover the median with 95.9 % (binomial); the bootstrap comes near them.
    assert found.low == pytest.approx(6, abs=1)
    assert found.high == pytest.approx(15, abs=1)


def test_any_function_of_several_medians_gets_an_interval() -> None:
    random = np.random.default_rng(3)
    drift = np.exp(random.normal(0, 0.2, size=25))
    arms = {name: (true * drift).tolist() for name, true in {"ideal": 1.0, "no_op": 1.2, "real": 1.5}.items()}
    lost = intervals.bootstrap_statistic(arms, lambda of: (of["real"] - of["no_op"]) / of["ideal"], seed=0)
    # Without noise beside the drift nothing is left to be unsure of.
    assert (lost.value, lost.low, lost.high) == pytest.approx((0.3, 0.3, 0.3))


def test_equal_seeds_give_equal_intervals() -> None:
    random = np.random.default_rng(5)
    above, below = random.lognormal(0, 0.05, size=(2, 60)).tolist()
    first, again, other = (bootstrap_median_ratio(above, below, seed=seed, num_draws=100) for seed in (1, 1, 2))
    assert first == again != other
    assert first.value == other.value


def test_higher_confidence_is_wider() -> None:
    random = np.random.default_rng(6)
    above, below = random.lognormal(0, 0.05, size=(2, 25)).tolist()
    widths = [
        bootstrap_median_ratio(above, below, seed=1, confidence=confidence).relative_half_width
        for confidence in (0.5, 0.8, 0.95, 0.99)
    ]
    assert widths == sorted(set(widths))


@pytest.mark.parametrize(("degrees", "quantile"), [(5, 2.5706), (9, 2.2622), (19, 2.0930), (59, 2.0010)])
def test_students_quantile_is_that_of_the_printed_tables(degrees: int, quantile: float) -> None:
    assert intervals._compute_t_quantile(0.975, degrees) == pytest.approx(quantile, rel=1e-3)


def test_pairs_needed_follows_the_formula() -> None:
    # (1.96 * 0.05 * sqrt(2) / 0.02)^2 = 48.02
    assert intervals.count_needed_pairs(0.05, 0.02) == 49
    assert intervals.count_needed_pairs(0.0, 0.02) == 0
    with pytest.raises(ValueError, match="half_width above 0"):
        intervals.count_needed_pairs(0.05, 0.0)


def test_what_gives_no_honest_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="5 trials are too few for a 95 % interval of a median; it needs at least 6"):
        bootstrap_median([1.0, 2.0, 3.0, 4.0, 5.0], seed=0)
    assert bootstrap_median([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], seed=0).high == pytest.approx(6.0)
    with pytest.raises(ValueError, match=r"one value per round; got \{'numerator': 7, 'denominator': 6\}"):
        bootstrap_median_ratio([1.0] * 7, [1.0] * 6, seed=0)
    with pytest.raises(ValueError, match="no arm"):
        intervals.bootstrap_statistic({}, lambda of: of["x"], seed=0)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"above 0; got {wrong}"):
            bootstrap_median([wrong, *[1.0] * 9], seed=0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        bootstrap_median([1.0] * 9, seed=0, confidence=1.0)


def test_interval_says_its_width_and_what_it_contains() -> None:
    found = Interval(value=2.0, low=1.9, high=2.2)
    assert found.relative_half_width == pytest.approx(0.075)
    assert [found.contains(number) for number in (1.89, 1.9, 2.0, 2.2, 2.21)] == [False, True, True, True, False]
    assert found.as_json() == {"value": 2.0, "low": 1.9, "high": 2.2}
    assert Interval(value=0.0, low=-1.0, high=1.0).relative_half_width == float("inf")
