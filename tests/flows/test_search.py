"""Who goes on to the next rung, and the commands that trials run."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import search, trials
from flows.search import Search, choose_promoted, rank
from flows.trials import Stage
from tasks.params import MAX_CELLS, Params
from tasks.params.strict_yaml import read_strict_yaml
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


def test_more_trials_than_a_comparison_has_cells_are_evaluated_in_groups(tmp_path, monkeypatch):
    raw = read_strict_yaml(Path("presets/embedded-search.yaml"))
    groups = []

    def keep(folder, raw, snapshot, *, without):
        groups.append(list(Params.model_validate(raw).cells))
        return {}

    losses = {"base": 9.0, **{f"trial-{index}": index / 100 for index in range(MAX_CELLS + 2)}}
    of_group = SimpleNamespace(models={name: SimpleNamespace(loss=loss) for name, loss in losses.items()})
    monkeypatch.setattr(search, "_EVALUATING", tmp_path)
    monkeypatch.setattr(search, "write_inputs", keep)
    monkeypatch.setattr(search, "link_folder", lambda *_: None)
    monkeypatch.setattr(search, "_run_stages", lambda *_, **__: None)
    monkeypatch.setattr(search.EvaluationFile, "read", lambda _: of_group)
    ours = Search.__new__(Search)
    ours.raw, ours.cell = raw, "1proc"
    planned = [SimpleNamespace(name=name, locate_run=lambda _: tmp_path) for name in losses if name != "base"]
    assert ours._evaluate(planned, 1) == {trial.name: losses[trial.name] for trial in planned}
    assert [len(group) for group in groups] == [MAX_CELLS, 2]
    assert ours.base_loss == 9.0
