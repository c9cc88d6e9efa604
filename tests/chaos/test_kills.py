"""Killed at random moments, a training ends with the clean run's weights: the short version of `make chaos`."""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.course import Size
from tests.chaos.kills import kill_trials, stop_trials, torchrun_kill_trials
from tests.chaos.soak import FAULTS, soak_trials
from tests.chaos.trial import Trial
from tests.training.forked_ranks import ForkedRanks

pytestmark = pytest.mark.slow

_NUM_FAULTS = len(FAULTS) + 2
"""Each kind once, and some twice."""


def _assert_survived(trials: Iterator[Trial], num_trials: int) -> list[Trial]:
    done = list(trials)
    assert [trial.problem for trial in done if trial.problem] == []
    assert len(done) == num_trials
    return done


def test_20_kills_of_a_random_rank_at_a_random_moment_change_no_bit(
    tmp_path: Path, ranks: ForkedRanks, record_property: Callable[[str, object], None]
) -> None:
    trials = _assert_survived(kill_trials(tmp_path, ranks, num_trials=20), 20)
    restarts = [trial.restart_seconds for trial in trials if trial.restart_seconds is not None]
    assert restarts, "no launch came to its first step"
    record_property("restart_seconds", f"{statistics.median(restarts):.2f} (at most {max(restarts):.2f})")


def test_a_killed_rank_and_a_killed_torchrun_leave_no_process_and_the_next_run_goes_on(tmp_path: Path) -> None:
    _assert_survived(torchrun_kill_trials(tmp_path, num_trials=2), 2)


def test_sigterm_at_a_random_moment_loses_nothing(tmp_path: Path, ranks: ForkedRanks) -> None:
    # Beside other tests; whoever does not hear it trains on.
    _assert_survived(stop_trials(tmp_path, ranks, num_trials=3, most_seconds=30.0), 3)


def test_a_long_training_with_a_fault_every_moment_ends_with_the_clean_weights(
    tmp_path: Path, ranks: ForkedRanks
) -> None:
    size = Size(num_rows=1280, epochs=2, global_batch_size=8, checkpoint_every_steps=5)
    trials = list(soak_trials(tmp_path, ranks, size, seconds_between_faults=0.0, num_faults_at_most=_NUM_FAULTS))
    assert [trial.problem for trial in trials if trial.problem] == []
    assert _NUM_FAULTS / 2 <= len(trials) <= _NUM_FAULTS
