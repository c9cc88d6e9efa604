"""Several starts of one training at once."""

from pathlib import Path

import pytest

from tests.chaos.starts import start_trials


@pytest.mark.slow
def test_of_several_starts_in_one_workspace_exactly_one_trains(tmp_path: Path) -> None:
    assert [trial.problem for trial in start_trials(tmp_path / "starts", num_trials=1)] == [""]
