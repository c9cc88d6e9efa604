"""Who goes on to the next rung, and the commands that trials run."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import search, trials
from flows.pipeline import StageFailed
from flows.search import Search, choose_promoted, rank
from flows.trials import Stage
from tasks.params import MAX_CELLS, Params
from tasks.params.search import SearchParams
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import DivergedError, ExitCode, ResourceError
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


@pytest.mark.parametrize(
    ("out", "best", "runner_up", "trained"),
    [
        ({}, 0, (1, 3), {1: [0, 1, 2, 3, 4, 5], 3: [0, 1], 9: [0]}),
        ({9: [0]}, 1, (2, 1), {1: [0, 1, 2, 3, 4, 5], 3: [0, 1], 9: [0, 1]}),
        ({3: [0, 1], 9: [2]}, 3, (4, 1), {1: [0, 1, 2, 3, 4, 5], 3: [0, 1, 2, 3], 9: [2, 3]}),
        ({1: [0, 1, 2, 3, 4], 9: [5]}, None, None, {1: [0, 1, 2, 3, 4, 5], 3: [5], 9: [5]}),
    ],
)
def test_where_all_that_went_on_diverge_the_next_of_the_rung_before_go_on(out, best, runner_up, trained):
    ours, seen = Search.__new__(Search), {}
    ours.asked, ours.losses, ours.problems = SearchParams(), {}, {}
    ours.trials = [SimpleNamespace(name=f"trial-{index}") for index in range(ours.asked.trials)]

    def train(trials, epochs):
        numbers = [ours.trials.index(trial) for trial in trials]
        seen.setdefault(epochs, []).extend(numbers)
        ours.problems |= {f"trial-{index}": "diverged" for index in numbers if index in out.get(epochs, ())}
        return {trial.name: float(trial.name[6:]) for trial in trials if trial.name not in ours.problems}

    ours.train, ours.track = train, lambda: None
    with nullcontext() if best is not None else pytest.raises(DivergedError, match="all trials diverged by epoch 9"):
        ours.climb()
    assert seen == trained
    if best is not None:
        assert (ours.best, ours.find_runner_up()) == (best, runner_up)


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """The cells of every params.yaml that trials are evaluated with."""
    groups = []

    def keep(folder, raw, snapshot, *, without):
        groups.append(list(Params.model_validate(raw).cells))
        return {}

    monkeypatch.setattr(search, "_EVALUATING", tmp_path)
    monkeypatch.setattr(search, "write_inputs", keep)
    monkeypatch.setattr(search, "link_folder", lambda *_: None)
    return groups


@pytest.mark.parametrize(
    ("number", "diverged", "sizes"),
    [
        (MAX_CELLS + 2, [], [MAX_CELLS, 2]),
        (MAX_CELLS + 2, [1, 11, MAX_CELLS + 1], [MAX_CELLS, MAX_CELLS - 1, MAX_CELLS - 2, 2, 1]),
        (1, [0], [1]),
    ],
)
def test_all_trials_are_evaluated_in_groups_and_those_without_a_finite_loss_are_out(
    groups, monkeypatch, number, diverged, sizes
):
    losses = {"base": 9.0, **{f"trial-{index}": index / 100 for index in range(number)}}
    bad = [f"trial-{index}" for index in diverged]

    def evaluate(*_, command):
        for cell in groups[-1]:
            if cell in bad:
                raise StageFailed(f"evaluate: {cell}: loss on the held-out rows is nan", ExitCode.DIVERGED)

    of_all = SimpleNamespace(models={name: SimpleNamespace(loss=loss) for name, loss in losses.items()})
    monkeypatch.setattr(search, "_run_stages", evaluate)
    monkeypatch.setattr(search.EvaluationFile, "read", lambda _: of_all)
    ours = Search.__new__(Search)
    ours.raw, ours.cell, ours.problems = read_strict_yaml(Path("presets/embedded-search.yaml")), "1proc", {}
    planned = [SimpleNamespace(name=f"trial-{index}", locate_run=str) for index in range(number)]
    wanted = {trial.name: losses[trial.name] for trial in planned if trial.name not in bad}
    assert ours._evaluate(planned, 1) == wanted
    assert [len(group) for group in groups] == sizes
    assert {name: said.split(":")[1].strip() for name, said in ours.problems.items()} == {name: name for name in bad}


@pytest.mark.parametrize(("whose", "code"), [("base", ExitCode.DIVERGED), ("trial-0", ExitCode.DATA)])
def test_no_trial_is_out_for_what_is_not_its_own_divergence(groups, monkeypatch, whose, code):
    def fail(*_, command):
        raise StageFailed(f"evaluate: {whose}: loss on the held-out rows is nan", code)

    monkeypatch.setattr(search, "_run_stages", fail)
    ours = Search.__new__(Search)
    ours.raw, ours.cell, ours.problems = read_strict_yaml(Path("presets/embedded-search.yaml")), "1proc", {}
    with pytest.raises(StageFailed):
        ours._evaluate([SimpleNamespace(name=f"trial-{index}", locate_run=str) for index in range(2)], 1)
    assert ours.problems == {}
