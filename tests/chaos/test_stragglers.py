"""Who is called a straggler."""

from pathlib import Path

import pytest

from tests.chaos.stragglers import equal_trials, straggler_trials
from tests.training.forked_ranks import ForkedRanks
from tests.undisturbed import hold_undisturbed

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def test_a_rank_of_a_third_of_the_speed_is_called_a_straggler(ranks: ForkedRanks, tmp_path: Path) -> None:
    assert [trial.problem for trial in straggler_trials(tmp_path, ranks, num_trials=2)] == ["", ""]


def test_ranks_that_are_as_fast_as_each_other_are_not(ranks: ForkedRanks, tmp_path: Path) -> None:
    def check(number: int) -> None:
        assert [trial.problem for trial in equal_trials(tmp_path / str(number), ranks, num_trials=1)] == [""]

    # Where others take a core from one of them, it is the slower one.
    hold_undisturbed(check)
