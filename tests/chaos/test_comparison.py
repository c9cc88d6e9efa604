"""A whole comparison, killed in some of its stages; `python -m tests.chaos comparison` kills it in all."""

from pathlib import Path

import pytest

from tests.chaos.comparison import Kill, comparison_trials
from tests.workspace import Workspace

KILLS = [Kill("download", "flow"), Kill("train 2proc", "dvc")]


@pytest.mark.slow
def test_kills_of_every_kind_leave_nobody_and_the_clean_weights(
    tmp_path: Path, finished: Workspace, warm: Path
) -> None:
    # Neither kill comes while anything is measured, on which no weight depends.
    changes = {"measure.speed": False}
    trials = list(
        comparison_trials(tmp_path / "comparison", KILLS, clean=finished, changes=changes, programs=warm)
    )  # fmt: skip
    assert [trial.problem for trial in trials] == [""] * len(KILLS)
