"""Equal sessions on a machine that drifts are rarely called different; a slower cell is; by hand where it can be."""

import functools
import math
import statistics
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tasks.measuring.arms import Arm
from tasks.measuring.intervals import estimate_mean
from tasks.measuring.speedups import measure_speedups
from tasks.measuring.turns import Timed, TimedTurns
from tasks.records.estimate import Estimate
from tasks.reporting.changes import make_history
from tasks.reporting.history import History, HistoryRecord
from tests.simulated_machine import Noise, SimulatedMachine

NUM_SESSIONS = 200
STEPS_PER_BLOCK = 6
START_SECONDS = 4.0
STEP_SECONDS = {"1gpu": 0.136, "2gpu": 0.08}
CALM = Noise(walk=0.002, thermal=0.005, jitter=0.01)
WORK = {"params_digest": "aa", "code_digest": "cc", "machine_digest": "ac3e", "name": "simulated", "gates_passed": True}
MACHINE = {"cpu": "A CPU", "num_cpus": 2, "gpus": "2 x A GPU", "driver": "550.1", "python": "3.11.9"}
VERSIONS = {"torch": "2.15.0", "transformers": "5.23", "preflight": "fit to measure"}


def record(
    cell: str,
    step: Estimate,
    speedup: Estimate | None = None,
    *,
    session: int = 0,
    num_rounds: int = 25,
    **changes: object,
) -> HistoryRecord:
    """Return one cell of one session."""
    figures = {"step_seconds": step.value, "step_seconds_low": step.low, "step_seconds_high": step.high}
    if speedup is not None:
        figures |= {"speedup": speedup.value, "speedup_low": speedup.low, "speedup_high": speedup.high}
    content = {
        **dict.fromkeys(("speedup", "speedup_low", "speedup_high")),
        **(WORK | MACHINE | VERSIONS | figures),
        "finished_at": f"2026-01-01T{session // 60:02}:{session % 60:02}:00+00:00",
        "measurement_digest": str(session),
        "cell": cell,
        "world_size": int(cell[0]),
        "num_rounds": num_rounds,
        "tokens_per_second": 1 / step.value,
    }
    return HistoryRecord.model_validate(content | changes)


class _SimulatedBench:
    """Runs turns on a simulated machine, on which a start of the ranks takes some seconds."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._turn, self._launch = 0, 1

    def launch_again(self, arms: Sequence[Arm]) -> None:
        self._launch += 1
        self._machine.now_seconds += START_SECONDS

    def run_turn(self, arms: Sequence[Arm], order: Iterator[list[str]], timed_turns: TimedTurns) -> None:
        self._turn += 1
        for name in next(order):
            before = self._machine.others_seconds
            steps = np.array([self._machine.run_block(name, STEPS_PER_BLOCK)])
            others = (self._machine.others_seconds - before) / float(steps.sum())
            timed_turns.add(
                Timed(
                    arm=name, turn=self._turn, launch=self._launch, step_seconds=steps, seconds=float(steps.mean()),
                    data_wait_seconds=0.0, num_tokens=1, positions_by_rank=[1], num_samples=1,
                    others_share=others,
                )
            )  # fmt: skip


@functools.cache
def session(seed: int, noise: Noise, slower: tuple[tuple[str, float], ...] = ()) -> list[HistoryRecord]:
    """Measure both cells as the stage does, on a machine in another mood each time; some cells by a factor slower."""
    true = {cell: seconds * dict(slower).get(cell, 1.0) for cell, seconds in STEP_SECONDS.items()}
    machine = SimulatedMachine(true, noise, seed)
    arms = [Arm(name=cell, cell=cell) for cell in true]
    found = measure_speedups(
        arms, _SimulatedBench(machine), half_width=0.03, max_seconds=60, most_share=0.05,
        of=lambda block: block.seconds, seed=seed, advance=lambda _: None, clock=lambda: machine.now_seconds,
    )  # fmt: skip
    return [
        record(
            cell,
            estimate_mean(found.select_counted(cell).list_by_launch(cell)),
            found.intervals.get(cell),
            session=seed,
            num_rounds=len(found.timed_turns.turns),
        )
        for cell in true
    ]


def rebenches(noise: Noise, slower: dict[str, float]) -> list[History]:
    """Return what each session but the first says of itself after up to ten earlier, equal ones."""
    found = []
    for seed in range(1, NUM_SESSIONS):
        earlier = [one for before in range(max(0, seed - 11), seed) for one in session(before, noise)]
        now = session(seed, noise, tuple(slower.items()))
        found.append(make_history([*earlier, *now], now))
    return found


def share_of_alarms(noise: Noise, slower: dict[str, float]) -> float:
    """Return how often the session is called a regression."""
    return statistics.fmean(history.regression is not None for history in rebenches(noise, slower))


@pytest.mark.parametrize("noise", [Noise(), CALM], ids=["drifting", "calm"])
def test_at_most_5_percent_of_equal_sessions_are_called_regressions(noise: Noise) -> None:
    alarms = share_of_alarms(noise, {})
    print(f"equal sessions called regressions: {alarms:.1%} of {NUM_SESSIONS - 1}")
    assert alarms <= 0.05


@pytest.mark.parametrize("noise", [Noise(), CALM], ids=["drifting", "calm"])
def test_a_cell_that_becomes_10_percent_slower_is_a_regression(noise: Noise) -> None:
    found = share_of_alarms(noise, {"2gpu": 1.1})
    print(f"2gpu 10 % slower, found in {found:.1%} of {NUM_SESSIONS - 1}")
    assert found >= 0.95


def test_the_interval_of_a_change_is_that_worked_out_by_hand() -> None:
    # In logarithms: standard deviation 0.01 of each session; of two 0.01414; 1.96 times that is 0.02772.
    half = math.exp(1.96 * 0.01)
    before = record("2gpu", Estimate(value=0.1, low=0.1 / half, high=0.1 * half), session=1)
    now = record("2gpu", Estimate(value=0.11, low=0.11 / half, high=0.11 * half), session=2)
    (change,) = make_history([before, now], [now]).changes
    assert change.ratio.value == pytest.approx(1 / 1.1)
    assert change.ratio.low == pytest.approx(math.exp(-0.02772) / 1.1, rel=1e-4)
    assert change.ratio.high == pytest.approx(math.exp(0.02772) / 1.1, rel=1e-4)
    assert (change.verdict, change.is_regression) == ("slower", True)


@pytest.mark.parametrize(
    ("speedup", "verdict", "is_regression"),
    [(1.90, "slower", True), (1.95, "slower", False), (2.0, "no difference", False), (2.1, "faster", False)],
)
def test_a_regression_is_slower_by_interval_and_by_more_than_3_percent(
    speedup: float, verdict: str, is_regression: bool
) -> None:
    before, now = pair(2.0, speedup, width=0.01)
    change = make_history([before, now], [now]).changes[-1]
    assert (change.quantity, change.verdict, change.is_regression) == ("speedup", verdict, is_regression)


def test_what_scattered_before_widens_the_interval() -> None:
    speedups = [2.0, 2.2, 2.0, 2.2, 2.0, 2.2]
    earlier = [record("2gpu", tight(0.1), tight(value), session=number) for number, value in enumerate(speedups)]
    now = record("2gpu", tight(0.1), tight(1.95), session=9)
    assert make_history([earlier[-1], now], [now]).regression is not None
    assert make_history([*earlier, now], [now]).regression is None


def test_a_baseline_that_became_faster_is_no_regression_of_the_others() -> None:
    before = [record("1gpu", tight(0.2), session=1), record("2gpu", tight(0.1), tight(2.0), session=1)]
    now = [record("1gpu", tight(0.16), session=2), record("2gpu", tight(0.1), tight(1.6), session=2)]
    history = make_history([*before, *now], now)
    assert [change.verdict for change in history.changes] == ["faster", "no difference", "slower"]
    assert history.regression is None
    slower = [now[0], record("2gpu", tight(0.12), tight(1.33), session=2)]
    assert make_history([*before, *slower], slower).regression is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"params_digest": "another"},
        {"cpu": "Another CPU"},
        {"gpus": "2 x Another GPU"},
        {"cell": "2other"},
        {"gates_passed": False},
        {"measurement_digest": "2"},
        {"step_seconds": None},
    ],
)
def test_only_the_same_work_on_the_same_models_that_passed_is_comparable(changes: dict[str, object]) -> None:
    before, now = pair(2.0, 1.5, width=0.01)
    assert make_history([before, now], [now]).regression is not None
    other = before.model_copy(update=changes)
    history = make_history([other, now], [now])
    assert history.changes == []
    assert history.summary.startswith("No earlier record is comparable")
    # The one before it counts then.
    assert make_history([before, other, now], [now]).regression is not None


@pytest.mark.parametrize(
    ("changes", "suspect"),
    [
        ({"driver": "555.2", "machine_digest": "x"}, "driver 550.1 -> 555.2"),
        ({"torch": "2.16.0", "machine_digest": "x"}, "torch 2.15.0 -> 2.16.0"),
        ({"num_cpus": 4, "machine_digest": "x"}, "number of CPUs 2 -> 4"),
        ({"preflight": "not fit to measure: GPU clocks"}, "preflight fit to measure -> not fit to measure: GPU clocks"),
        ({"code_digest": "x"}, "the code of training/"),
        ({"machine_digest": "x"}, "another fact of the machine (data/fingerprint/machine.json)"),
        ({}, "nothing that is recorded"),
    ],
)
def test_what_else_changed_is_named_as_suspect(changes: dict[str, object], suspect: str) -> None:
    before, now = pair(2.0, 1.5, width=0.01)
    now = now.model_copy(update=changes)
    regression = make_history([before, now], [now]).regression
    assert regression is not None
    assert regression == (
        "slower than in the last comparable record: speedup of 2gpu 2.00x -> 1.50x, 0.75x (0.74 to 0.76) of what "
        f"it was: slower; changed since 2026-01-01 00:01 UTC: {suspect}"
    )


def test_the_last_ten_comparisons_are_shown_and_without_speedups_while_withheld() -> None:
    records = [record("2gpu", tight(0.1), tight(2.0), session=number) for number in range(15)]
    shown = make_history(records, records[-1:]).records
    assert shown == records[5:]
    failed = records[-1].model_copy(update={"gates_passed": False})
    withheld = make_history([*records[:-1], failed], [failed])
    assert [one.speedup for one in withheld.records] == [None] * 10
    assert (withheld.changes, withheld.suspects) == ([], [])
    assert withheld.summary == "Not compared with earlier records: a gate failed."


def tight(value: float, width: float = 0.01) -> Estimate:
    return Estimate(value=value, low=value * math.exp(-width), high=value * math.exp(width))


def pair(before: float, now: float, *, width: float) -> tuple[HistoryRecord, HistoryRecord]:
    """Return two sessions with these speedups and equal step times."""
    first, second = (
        record("2gpu", tight(0.1), tight(speedup, width), session=number)
        for number, speedup in enumerate((before, now), start=1)
    )
    return first, second
