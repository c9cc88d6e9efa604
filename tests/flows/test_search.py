"""Who goes on to the next rung, and the commands that trials run."""

import json
import os
import shutil
from pathlib import Path

import pytest

from flows import trials
from flows.search import choose_promoted, rank
from flows.trials import Stage, Trial
from tasks.params import Params
from tasks.params.search import Configuration
from tasks.process.failure import ResourceError
from tasks.train import PlannedSegment
from tests.flows.toy_project import wait_for
from tests.tasks.reporting.comparison import edit_json, edit_segment, write_comparison


def test_the_best_go_on_and_of_equal_losses_the_lower_number() -> None:
    losses = {4: 2.5, 0: 3.0, 2: 2.5, 1: 2.0, 3: 9.0, 5: 2.5}
    assert rank(losses) == [1, 2, 4, 5, 0, 3]
    assert choose_promoted(losses, eta=3) == [1, 2]
    assert choose_promoted(losses, eta=2) == [1, 2, 4]
    # In whatever order they ended.
    assert choose_promoted(dict(reversed(losses.items())), eta=2) == [1, 2, 4]


def test_nobody_trains_in_the_folder_of_a_trial_whose_stage_still_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, ours = Stage(), Stage()
    left.start(["sleep", "600"], os.environ, tmp_path)
    monkeypatch.setattr(trials, "_SECONDS_TO_SAVE", 0.2)
    with pytest.raises(ResourceError, match="another search trains there"):
        ours.start(["true"], os.environ, tmp_path)
    left.end()
    ours.start(["true"], os.environ, tmp_path)
    wait_for(lambda: ours.poll() == 0, seconds=60, what="it ended well")


def test_a_run_folder_that_was_exchanged_with_another_trials_is_not_taken_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # What it works on is whole: it is the folder that is evaluated which was exchanged.
    monkeypatch.setattr("flows.trials.find_problem", lambda *_, **__: None)
    params = write_comparison(tmp_path / "made")
    made = tmp_path / "made/runs"
    fingerprints = {"1proc": "a1" * 32, "2proc": "b2" * 32}
    runs = []
    for cell, fingerprint in fingerprints.items():
        for part in params["ranges"]:
            edit_segment(tmp_path / "made", cell, part, fingerprint=fingerprint)
        facts = json.loads((made / cell / "run.json").read_bytes())
        segments = [entry | {"fingerprint": fingerprint} for entry in facts["segments"]]
        edit_json(made / cell / "run.json", segments=segments)
        configuration = Configuration(learning_rate=1e-3, batch_size=4, weight_decay=0.0, warmup_steps=0)
        trial = Trial(
            name=cell, configuration=configuration, cell=cell, raw={},
            params=Params.model_validate(params), segments=[PlannedSegment(**entry, num_steps=2) for entry in segments],
        )  # fmt: skip
        shutil.copytree(made / cell, trial.locate_run(2))
        runs.append(trial)
    assert [trial.is_finished(2) for trial in runs] == [True, True]
    first, second = (trial.locate_run(2) for trial in runs)
    for whole in (False, True):
        one, other = (first, second) if whole else (first / "segments", second / "segments")
        one.rename(tmp_path / "aside")
        other.rename(one)
        (tmp_path / "aside").rename(other)
        assert [trial.is_finished(2) for trial in runs] == [False, False]
