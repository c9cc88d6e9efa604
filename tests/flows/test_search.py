"""Who goes on to the next rung, and the commands that trials run."""

import os

import pytest

from flows import trials
from flows.search import choose_promoted, rank
from flows.trials import Stage
from tasks.process.failure import ResourceError
from tests.flows.toy_project import wait_for


def test_the_best_go_on_and_of_equal_losses_the_lower_number():
    losses = {4: 2.5, 0: 3.0, 2: 2.5, 1: 2.0, 3: 9.0, 5: 2.5}
    assert rank(losses) == [1, 2, 4, 5, 0, 3]
    assert choose_promoted(losses, eta=3) == [1, 2]
    assert choose_promoted(losses, eta=2) == [1, 2, 4]
    # In whatever order they ended.
    assert choose_promoted(dict(reversed(losses.items())), eta=2) == [1, 2, 4]


def test_nobody_trains_in_the_folder_of_a_trial_whose_stage_still_saves(tmp_path, monkeypatch):
    left, ours = Stage(), Stage()
    left.start(["sleep", "600"], os.environ, tmp_path)
    monkeypatch.setattr(trials, "_SECONDS_TO_SAVE", 0.2)
    with pytest.raises(ResourceError, match="another search trains there"):
        ours.start(["true"], os.environ, tmp_path)
    left.end()
    ours.start(["true"], os.environ, tmp_path)
    wait_for(lambda: ours.poll() == 0, seconds=60, what="it ended well")
