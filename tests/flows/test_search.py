"""Who goes on to the next rung, and the commands that trials run."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import search, trials
from flows.pipeline import StageFailed
from flows.search import Search, choose_promoted, rank
from flows.trials import Stage, Trial, TrialSlot, open_slots, run_trials
from tasks.params import MAX_CELLS, Params
from tasks.params.search import SearchParams
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ConfigurationError, DivergedError, ExitCode, ResourceError
from tasks.ranks.cluster.machine import Machine
from tasks.records.run import RunFile
from tests.flows.toy_project import wait_for
from tests.machines import make_machine


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


_T4 = {"name": "T4"}


@pytest.mark.parametrize(
    ("visible", "there", "refused"),
    [
        ("0,1", {}, None),
        ("0,1", {"gpus": [_T4] * 4}, None),  # of which the shell of this machine chose two
        ("0,1", {"gpus": [_T4]}, "GPUs T4, here T4, T4"),
        ("0,1", {"gpus": [_T4, {"name": "L4"}]}, "GPUs T4, L4, here T4, T4"),
        ("0,1", {"driver": "570.1"}, "driver 570.1, here None"),
        ("0,1", {"cpu": "another"}, "CPU another, here a cpu"),
        ("GPU-5ab1,GPU-77c0", {}, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_trials_go_to_machines_of_one_kind_alone(tmp_path, monkeypatch, visible, there, refused):
    here = make_machine(num_gpus=2)
    # Of this one Ray may have been started with other GPUs.
    facts = [{**here.model_dump(), "host": "first", "gpus": []}, {**here.model_dump(), "host": "second", **there}]

    class Known(Machine):
        def make(self, kind, *words, threads=1):
            return None

        def ask(self, what, *words, **named):
            return {"is_open": False, "facts": facts[self.number]}

    nodes = [{"NodeManagerAddress": f"10.0.0.{number}", "NodeID": str(number)} for number in range(2)]
    known = {"connect": lambda _: None, "list_nodes": lambda: nodes, "collect_machine_facts": lambda: here}
    for name, value in {**known, "Machine": Known}.items():
        monkeypatch.setattr(trials, name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.chdir(tmp_path)
    with nullcontext() if refused is None else pytest.raises(ConfigurationError, match=refused):
        assert [slot.turn for slot in open_slots("auto", at_once=3)] == [0, 0, 1]


class _Toy(SimpleNamespace):
    """A trial of two segments that is trained in no time."""

    note_others, read_others, configuration = Trial.note_others, Trial.read_others, ""

    def read_problem(self, epochs):
        return None

    def is_finished(self, epochs):
        return False

    def start(self, epochs, slot, devices):
        pass

    def end(self, code, epochs):
        for part in self.segments[:epochs]:
            (self.folder / "work/segments" / part.fingerprint).mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize(("machines", "number"), [(["a", "a"], 1), (["a", "b"], 0)])
def test_it_is_known_of_each_segment_how_many_others_trained_on_its_machine(tmp_path, monkeypatch, machines, number):
    monkeypatch.setattr(trials, "_SECONDS_BETWEEN_LOOKS", 0.0)
    slots = [TrialSlot(name=name, turn=0, ask=lambda what: 0) for name in machines]
    first, second = (
        _Toy(name=name, folder=tmp_path / name, segments=[SimpleNamespace(fingerprint=name + part) for part in "12"])
        for name in ("first", "second")
    )
    run_trials([first, second], 1, slots=slots, devices=[])
    run_trials([first], 2, slots=slots, devices=[])
    assert first.read_others() == {"first1": number, "first2": 0}
    assert second.read_others() == {"second1": number}


@pytest.mark.parametrize(
    ("others", "num_gpus", "num_ranks", "linked"),
    [
        ("00", 0, 1, "12"),
        ("01", 0, 1, "1"),
        ("10", 1, 1, ""),
        ("?0", 0, 1, ""),
        ("10", 2, 1, "12"),
        ("10", 2, 2, ""),
    ],
)
def test_a_comparison_is_given_of_the_best_trial_what_it_trained_alone(
    tmp_path, monkeypatch, others, num_gpus, num_ranks, linked
):
    known = {name: int(number) for name, number in zip("12", others, strict=True) if number != "?"}
    monkeypatch.chdir(tmp_path)
    for name in "12":
        (folder := tmp_path / "trial/work/segments" / name).mkdir(parents=True)
        (folder / "receipt.json").touch()
    ours = Search.__new__(Search)
    ours.asked, ours.cell, ours.losses = SearchParams(at_once=2), "1proc", {SearchParams().rungs[-1]: {0: 1.0}}
    ours.devices = list(map(str, range(num_gpus)))
    ours.params = SimpleNamespace(cells={"1proc": SimpleNamespace(world_size=num_ranks)})
    parts = [SimpleNamespace(fingerprint=name) for name in "12"]
    ours.trials = [SimpleNamespace(folder=tmp_path / "trial", segments=parts, read_others=lambda: known)]
    ours.link_best()
    given = tmp_path.glob(".work/runs/1proc/segments/*/receipt.json")
    assert "".join(sorted(file.parent.name for file in given)) == linked


def test_what_another_machine_made_in_a_shared_folder_may_be_seen_later(tmp_path, monkeypatch):
    file = RunFile.path_in(tmp_path)
    monkeypatch.setattr(trials.time, "sleep", lambda _: file.touch())
    Trial.end(SimpleNamespace(locate_run=lambda _: tmp_path), ExitCode.OK, 1)
    assert file.exists()


@pytest.mark.parametrize(
    ("out", "best", "runner_up", "trained"),
    [
        ({}, 0, (1, 3), "1: 012345, 3: 01, 9: 0"),
        ({9: "0"}, 1, (2, 1), "1: 012345, 3: 01, 9: 01"),
        ({3: "01", 9: "2"}, 3, (4, 1), "1: 012345, 3: 0123, 9: 23"),
        ({1: "01234", 9: "5"}, None, None, "1: 012345, 3: 5, 9: 5"),
    ],
)
def test_where_all_that_went_on_diverge_the_next_of_the_rung_before_go_on(out, best, runner_up, trained):
    """`out`: epochs of a rung -> numbers of those that diverge then; `trained`: whose turn it was."""
    ours, seen = Search.__new__(Search), {}
    ours.asked, ours.losses, ours.problems = SearchParams(), {}, {}
    ours.trials = [SimpleNamespace(name=f"trial-{index}") for index in range(ours.asked.trials)]

    def train(trials, epochs):
        numbers = [ours.trials.index(trial) for trial in trials]
        seen[epochs] = seen.get(epochs, "") + "".join(map(str, numbers))
        ours.problems |= {f"trial-{index}": "diverged" for index in numbers if str(index) in out.get(epochs, "")}
        return {trial.name: float(trial.name[6:]) for trial in trials if trial.name not in ours.problems}

    ours.train, ours.track = train, lambda: None
    with nullcontext() if best is not None else pytest.raises(DivergedError, match="all trials diverged by epoch 9"):
        ours.climb()
    assert ", ".join(f"{epochs}: {numbers}" for epochs, numbers in seen.items()) == trained
    if best is not None:
        assert (ours.best, ours.find_runner_up()) == (best, runner_up)


@pytest.mark.parametrize(
    ("number", "bad", "code", "sizes"),
    [
        (MAX_CELLS + 2, [], ExitCode.DIVERGED, [MAX_CELLS, 2]),
        (
            MAX_CELLS + 2, ["trial-1", "trial-11", f"trial-{MAX_CELLS + 1}"], ExitCode.DIVERGED,
            [MAX_CELLS, MAX_CELLS - 1, MAX_CELLS - 2, 2, 1],
        ),
        (1, ["trial-0"], ExitCode.DIVERGED, [1]),
        # What is not a trial's own divergence puts none out.
        (2, ["base"], ExitCode.DIVERGED, None),
        (2, ["trial-0"], ExitCode.DATA, None),
    ],
)  # fmt: skip
def test_all_trials_are_evaluated_in_groups_and_those_without_a_finite_loss_are_out(
    number, bad, code, sizes, tmp_path, monkeypatch
):
    losses, groups = {f"trial-{index}": index / 100 for index in range(number)}, []

    def keep(folder, raw, snapshot, *, without):
        groups.append(list(Params.model_validate(raw).cells))
        return {}

    def evaluate(*_, command):
        for model in ("base", *groups[-1]):
            if model in bad:
                raise StageFailed(f"evaluate: {model}: loss on the held-out rows is nan", code)

    of_all = {name: SimpleNamespace(loss=loss) for name, loss in {"base": 9.0, **losses}.items()}
    others = {"_EVALUATING": tmp_path, "write_inputs": keep, "link_folder": lambda *_: None, "_run_stages": evaluate}
    for name, other in others.items():
        monkeypatch.setattr(search, name, other)
    monkeypatch.setattr(search.EvaluationFile, "read", lambda _: SimpleNamespace(models=of_all))
    ours = Search.__new__(Search)
    ours.raw, ours.cell, ours.problems = read_strict_yaml(Path("presets/embedded-search.yaml")), "1proc", {}
    planned = [SimpleNamespace(name=name, locate_run=str) for name in losses]
    with nullcontext() if sizes else pytest.raises(StageFailed):
        assert ours._evaluate(planned, 1) == {name: loss for name, loss in losses.items() if name not in bad}
    assert sizes is None or [len(group) for group in groups] == sizes
    assert [name for name, said in ours.problems.items() if f" {name}: " in said] == (bad if sizes else [])
    assert len(ours.problems) == (len(bad) if sizes else 0)
