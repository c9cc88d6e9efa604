"""`make search`, for real and tiny: killed and taken up, in the tracker, and taken on by a comparison."""

import json
import os
import signal
import subprocess
import time

import pytest
from ruamel.yaml import YAML

from flows.search import Search
from flows.trials import TRIALS
from tasks.params import load_params
from tasks.process.failure import ExitCode
from tasks.records.run import RunFile, SegmentReceipt
from tests.faults import plan_faults
from tests.processes import left_of, new_mark, none_left_of
from tests.workspace import Workspace
from training.process.files import digest_file

pytestmark = pytest.mark.slow

TINY = YAML(typ="safe", pure=True).load("""
name: search
ranges: [0-32]
search:
  learning_rate: [5.0e-4, 1.0e-2]
  batch_size: [4, 8]
  warmup_steps: [0, 2]
  trials: 2
  at_once: 2
  rungs: [1, 2]
  eta: 2
  repeats: 1
""")
SEARCH = ("python", "-m", "flows.search")
_NUM_TRAININGS = 2 + 1 + 2 + 1
"""Of a whole search: the first rung, the second, best and runner-up with another seed, and the best by two ranks."""


@pytest.fixture(scope="module")
def searched(finished, warm, tmp_path_factory):
    """A workspace in which a search has run from the beginning to the end."""
    workspace = finished.copy(tmp_path_factory.mktemp("searched") / "project", programs=warm)
    workspace.change(TINY)
    said = workspace.run(*SEARCH).stdout
    assert "is the best of 2 trials" in said
    assert said.rstrip().endswith("Report: reports/search.html")
    return workspace


def _read(workspace):
    return json.loads((workspace.folder / "reports/search/search.json").read_bytes())


def _without_times(found):
    """Return what is found without seconds and without the patch of a params.yaml, which may be laid out otherwise."""
    if isinstance(found, dict):
        others = ("train_seconds", "num_others", "patch")
        return {key: _without_times(value) for key, value in found.items() if key not in others}
    return [_without_times(value) for value in found] if isinstance(found, list) else found


def _digest_weights(workspace):
    """Return segment -> digest of its semantic checkpoint, of all that was trained."""
    found = {}
    for folder in (workspace.folder / TRIALS).glob("*/work/segments/*"):
        (name,) = (name for name in SegmentReceipt.read(folder).files if name.endswith(".pt") and name != "state.pt")
        found[folder.name] = digest_file(folder / name)
    return found


def _count_launches(workspace):
    return {logs.parts[-3]: len(list(logs.iterdir())) for logs in (workspace.folder / TRIALS).glob("*/work/logs")}


def test_a_search_killed_at_any_time_goes_on_to_the_same_result_to_the_bit(searched, finished, tmp_path, warm):
    killed = finished.copy(tmp_path / "project")  # whose processes are started, and ended, as they are
    killed.change({**TINY, "tracking.kind": "none"})
    mark = new_mark()
    with none_left_of(mark):
        process = subprocess.Popen(
            SEARCH, cwd=killed.folder, env=killed.environment(**mark), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 600
        while not (ended := list((killed.folder / TRIALS).glob("*/epochs-1/run.json"))):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for pid in left_of(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert not (killed.folder / "reports/search.html").exists()
    written = {file: file.stat().st_mtime_ns for file in killed.folder.glob(f"{TRIALS}/*/work/segments/*/receipt.json")}
    assert written
    Workspace(killed.folder, programs=warm).run(*SEARCH)
    assert _without_times(_read(killed)) == _without_times(_read(searched))
    assert _digest_weights(killed) == _digest_weights(searched)
    # Nothing that was finished is written again, and only what ran when it was killed is started again.
    assert {file: file.stat().st_mtime_ns for file in written} == written
    before, after = _count_launches(searched), _count_launches(killed)
    assert sum(before.values()) == _NUM_TRAININGS
    again = {trial for trial in after if after[trial] > before[trial]}
    assert again <= set(after) - {file.parents[1].name for file in ended}
    assert len(again) <= TINY["search"]["at_once"]


def test_a_promoted_trial_goes_on_from_its_checkpoint_and_no_step_is_trained_twice(searched, monkeypatch):
    monkeypatch.chdir(searched.folder)
    found = _read(searched)
    best = Search(load_params()).trials[found["best"]]
    places = [best.locate_run(epochs) for epochs in (1, 2)]
    first, second = (RunFile.read(place).segments for place in places)
    assert [part.epoch for part in second] == [1, 2]
    assert first == second[:1]
    folders = [place / first[0].folder for place in places]
    assert folders[0].joinpath("segment.json").stat().st_ino == folders[1].joinpath("segment.json").stat().st_ino
    for index, trial in enumerate(found["trials"]):
        assert len(trial["losses"]) == len(trial["epochs"]) == (2 if index == found["best"] else 1)


def test_a_search_that_is_finished_trains_nothing_and_its_best_goes_on_as_an_ordinary_comparison(
    searched, warm, tmp_path
):
    again = searched.copy(tmp_path / "project", programs=warm)
    before, found = _count_launches(again), _read(again)
    assert "to epoch 1: 2 of 2 trials are there already" in again.run(*SEARCH).stdout
    assert _count_launches(again) == before
    assert _read(again) == found
    again.run("git", "apply", "reports/search/params.patch")
    params = load_params(again.folder / "params.yaml")
    drawn = found["trials"][found["best"]]["drawn"]
    assert (params.train.learning_rate, params.train.global_batch_size) == (drawn["learning_rate"], drawn["batch_size"])
    assert [epoch["num_others"] for epoch in found["trials"][found["best"]]["epochs"]] == [1, 0]
    # The same segments, trained anew, since the first of the trial was trained beside another.
    again.repro("train@1proc")
    tried, trained = (
        {folder.name for folder in again.folder.glob(f"{place}/segments/*")}
        for place in (f"{TRIALS}/*/work", ".work/runs/1proc")
    )
    assert len(tried & trained) == 2


def test_a_trial_that_fails_ends_the_search_in_one_line_and_leaves_no_process(searched, warm, tmp_path):
    bad = searched.copy(tmp_path / "project", programs=warm)
    bad.change({"tracking.kind": "none", "train.seed": 7})
    mark = new_mark()
    with none_left_of(mark):
        done = bad.run(*SEARCH, ok=False, **plan_faults("rank=0,step=2,kind=sigkill"), **mark)
        assert left_of(mark) == {}
    assert done.returncode == ExitCode.DISTRIBUTED
    assert done.stdout.splitlines()[-1].startswith("search: trial-")
    assert "trial.log" in done.stdout.splitlines()[-1]


def test_trials_that_diverge_are_out_and_a_search_of_such_alone_says_so(searched, warm, tmp_path):
    bad = searched.copy(tmp_path / "project", programs=warm)
    bad.change({"tracking.kind": "none", "train.seed": 8})
    done = bad.run(*SEARCH, ok=False, **plan_faults("rank=0,step=2,kind=nan"))
    assert done.returncode == ExitCode.DIVERGED
    assert "trial-1: out of the search: train: cell 1proc" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("search: all trials diverged by epoch 1; allowed")
    # They are not tried again.
    launches = _count_launches(bad)
    assert bad.run(*SEARCH, ok=False).returncode == ExitCode.DIVERGED
    assert _count_launches(bad) == launches
