"""`make search`, for real and tiny: killed and taken up, in the tracker, and taken on by a comparison."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows.fair_trials import require_comparable
from flows.places import Stage
from flows.search import Search
from flows.trials import TRIALS, Trial
from tasks.params import load_params
from tasks.process.failure import ConfigurationError, DataError, ExitCode
from tasks.records.run import RunFile, SegmentReceipt
from tests.museum.exhibit import Exhibit
from tests.museum.exhibits import EXHIBITS
from tests.museum.museum import name_patches
from tests.mutants.patching import make_environment
from tests.processes import left_of, new_mark, none_left_of
from tests.ray_cluster import find_own_address, needs_ray, two_raylets
from tests.workspace import Workspace
from training.process.files import digest_file

pytestmark = pytest.mark.slow

RUNGS = [1, 2]
TINY: dict[str, Any] = {
    "name": "search",
    "ranges": ["0-64"],
    "search": {
        "learning_rate": [5e-4, 1e-2], "batch_size": [4, 8], "warmup_steps": [0, 2], "trials": 3, "at_once": 2,
        "rungs": RUNGS, "repeats": 1,
    },
}  # fmt: skip
SEARCH = ("python", "-m", "flows.search")
_NUM_TRAININGS = 3 + 1 + 2 + 1
"""Of a whole search: the first rung, the second, best and runner-up with another seed, and the best by two ranks."""


@pytest.fixture(scope="module")
def searched(finished: Workspace, warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace in which a search has run from the beginning to the end."""
    workspace = finished.copy(tmp_path_factory.mktemp("searched") / "project", programs=warm)
    workspace.change(TINY)
    said = workspace.run(*SEARCH).stdout
    assert "is the best of 3 trials" in said
    assert said.rstrip().endswith("Report: reports/search.html")
    return workspace


@pytest.fixture
def search(searched: Workspace, monkeypatch: pytest.MonkeyPatch) -> Search:
    """The same as it knows itself; nothing of it has to be trained."""
    monkeypatch.chdir(searched.folder)
    return Search(load_params())


def _read(workspace: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((workspace.folder / "reports/search/search.json").read_bytes())
    return found


def _without_times(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_times(value) for key, value in found.items() if key != "train_seconds"}
    return [_without_times(value) for value in found] if isinstance(found, list) else found


def _digest_weights(workspace: Workspace) -> dict[str, str]:
    """Return segment -> digest of its semantic checkpoint, of all that was trained."""
    found = {}
    for folder in (workspace.folder / TRIALS).glob("*/work/segments/*"):
        (name,) = (name for name in SegmentReceipt.read(folder).files if name.endswith(".pt") and name != "state.pt")
        found[folder.name] = digest_file(folder / name)
    return found


def _plan_trials(workspace: Workspace) -> list[Path]:
    """Return the folders of the search's trials, by their numbers."""
    with contextlib.chdir(workspace.folder):
        return [trial.folder for trial in Search(load_params()).trials]


def _count_launches(workspace: Workspace) -> dict[str, int]:
    return {logs.parts[-3]: len(list(logs.iterdir())) for logs in (workspace.folder / TRIALS).glob("*/work/logs")}


def test_a_search_killed_at_any_time_goes_on_to_the_same_result_to_the_bit(
    searched: Workspace, cold_workspace: Workspace, warm: Path
) -> None:
    killed = cold_workspace
    killed.change({**TINY, "tracking.kind": "none"})
    mark = new_mark()
    with none_left_of(mark):
        process = subprocess.Popen(
            SEARCH, cwd=killed.folder, env=killed.environment(**mark), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 600
        while not (finished := list((killed.folder / TRIALS).glob("*/epochs-1/run.json"))):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for pid in left_of(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert not (killed.folder / "reports/search.html").exists()
    written = {file: file.stat().st_mtime_ns for file in killed.folder.glob(f"{TRIALS}/*/work/segments/*/receipt.json")}
    assert finished
    assert written
    Workspace(killed.folder, programs=warm).run(*SEARCH)
    assert _without_times(_read(killed)) == _without_times(_read(searched))
    assert _digest_weights(killed) == _digest_weights(searched)
    # Nothing that was finished is written again, and only what ran when it was killed is started again.
    assert {file: file.stat().st_mtime_ns for file in written} == written
    before, after = _count_launches(searched), _count_launches(killed)
    assert sum(before.values()) == _NUM_TRAININGS
    again = {trial for trial in after if after[trial] > before[trial]}
    assert again <= set(after) - {file.parents[1].name for file in finished}
    assert len(again) <= TINY["search"]["at_once"]


def test_what_is_written_to_params_yaml_meanwhile_is_in_no_trial(search: Search) -> None:
    file = Path("params.yaml")
    text = file.read_text()
    try:
        file.write_text(text.replace("train:", "train:\n  adam_beta2: 0.5", 1))
        assert load_params().train.adam_beta2 == 0.5
        assert search._plan("trial-0", 0).folder == search.trials[0].folder
        with pytest.raises(ConfigurationError, match="changed since the search began"):
            Search(search.params)
    finally:
        file.write_text(text)


def test_a_promoted_trial_goes_on_from_its_checkpoint_and_no_step_is_trained_twice(search: Search) -> None:
    found = _read_here()
    best = search.trials[found["best"]]
    runs = [RunFile.read(best.locate_run(epochs)) for epochs in RUNGS]
    assert [part.epoch for part in runs[1].segments] == [1, 2]
    assert runs[0].segments == runs[1].segments[:1]
    folders = [best.locate_run(1) / runs[0].segments[0].folder, best.locate_run(2) / runs[1].segments[0].folder]
    assert folders[0].joinpath("segment.json").stat().st_ino == folders[1].joinpath("segment.json").stat().st_ino
    for index, trial in enumerate(found["trials"]):
        assert len(trial["losses"]) == (2 if index == found["best"] else 1)
        assert len(trial["epochs"]) == len(trial["losses"])


def test_a_search_that_is_finished_trains_nothing(searched: Workspace, warm: Path, tmp_path: Path) -> None:
    again = searched.copy(tmp_path / "project", programs=warm)
    again.change({"tracking.kind": "none"})
    before = _count_launches(again)
    said = again.run(*SEARCH).stdout
    assert "to epoch 1: 3 of 3 trials are there already" in said
    assert _count_launches(again) == before
    assert _read(again) == _read(searched)


@needs_ray
def test_trials_spread_over_a_cluster_have_the_weights_of_those_of_one_machine(
    searched: Workspace, warm: Path, tmp_path: Path
) -> None:
    spread, found = searched.copy(tmp_path / "project", programs=warm), _read(searched)
    for index, trial in enumerate(_plan_trials(spread)):
        if index != found["best"]:
            shutil.rmtree(spread.folder / trial)
    here = find_own_address()
    with two_raylets(tmp_path, addresses=(here, here), starts=(subprocess.Popen, subprocess.Popen)) as cluster:
        spread.change({"tracking.kind": "none", "ray": {"address": cluster.address}})
        said = spread.run(*SEARCH, **cluster.environment).stdout
    assert re.search(r"trial-\d: to epoch 1 on node 0 \(.*\), with learning rate", said)
    assert re.search(r"trial-\d: to epoch 1 on node 1 \(.*\), with learning rate", said)
    assert _digest_weights(spread) == _digest_weights(searched)
    assert _without_times(_read(spread)) == _without_times(found)


def test_a_machine_that_does_not_see_the_folder_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("of another folder")
    assert Stage().prepare(str(tmp_path), "seen", "of this folder") is None
    assert Stage().prepare(str(tmp_path), "nothing", "of this folder") is None


def test_the_best_goes_on_as_an_ordinary_comparison(searched: Workspace, warm: Path, tmp_path: Path) -> None:
    goes_on = searched.copy(tmp_path / "project", programs=warm)
    found = _read(goes_on)
    goes_on.run("git", "apply", "reports/search/params.patch")
    goes_on.run("python", "-m", "tasks.params")
    params = load_params(goes_on.folder / "params.yaml")
    drawn = found["trials"][found["best"]]["drawn"]
    assert (params.train.learning_rate, params.train.global_batch_size) == (drawn["learning_rate"], drawn["batch_size"])
    launches = goes_on.launches("1proc")
    said = goes_on.repro("train@1proc").stdout
    assert "1proc: 2 of 2 segments are finished already; nothing to train" in said
    assert goes_on.launches("1proc") == launches


def test_every_trial_is_a_run_below_one_in_the_tracker(searched: Workspace) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{searched.folder / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "ddp-compare"]
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    parent, found = runs["search-search"], _read(searched)
    for index, trial in enumerate(found["trials"]):
        run = runs[trial["name"]]
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert float(run.data.params["train.learning_rate"]) == trial["drawn"]["learning_rate"]
        assert run.data.metrics["final/heldout_loss"] == list(trial["losses"].values())[-1]
        steps = [point.step for point in client.get_metric_history(run.info.run_id, "loss")]
        assert sorted(steps) == list(range(1, len(steps) + 1))
        assert len(steps) == len(trial["epochs"]) * 64 // trial["drawn"]["batch_size"], index
    assert {f"trial-{one['trial']}-seed-{one['seed']}" for one in found["repeats"]} < set(runs)


def test_trials_of_other_numbers_of_epochs_are_not_compared(search: Search) -> None:
    best = _read_here()["best"]
    others = [trial for index, trial in enumerate(search.trials) if index != best]
    require_comparable(search.trials, 1, span=2)

    class Longer(Trial):
        def locate_run(self, epochs: int) -> Path:
            return search.trials[best].locate_run(2)

    longer = Longer(**vars(search.trials[best]))
    with pytest.raises(DataError, match=r"trial-\d learned from [\d,]+ tokens and trial-\d from [\d,]+; allowed: as"):
        require_comparable([*others, longer], 1, span=2)


def test_a_schedule_of_another_span_is_refused(search: Search) -> None:
    with pytest.raises(DataError, match=r"learning rate .* in step \d+, by one schedule over \d+ steps .*; allowed"):
        require_comparable(search.trials, 1, span=3)


@pytest.mark.parametrize(
    "exhibit", [part for part in EXHIBITS if part.scenario == "search"], ids=lambda exhibit: exhibit.key
)
def test_a_search_of_the_museum_is_refused(
    exhibit: Exhibit, searched: Workspace, warm: Path, tmp_path: Path
) -> None:  # fmt: skip
    wrong = searched.copy(tmp_path / "project", programs=warm)
    wrong.change({"tracking.kind": "none", **dict(exhibit.params)})
    done = wrong.run(*SEARCH, ok=False, **make_environment(name_patches(exhibit)))
    assert done.returncode == ExitCode.DATA
    assert exhibit.caught_by.removeprefix("search: ") in done.stdout.splitlines()[-1]


def test_a_search_under_other_arithmetic_goes_on_with_no_trial_of_this_one(
    searched: Workspace, warm: Path, tmp_path: Path
) -> None:
    other = searched.copy(tmp_path / "project", programs=warm)
    other.change({"tracking.kind": "none"})
    before = _count_launches(other)
    other.run(*SEARCH, ONEDNN_DEFAULT_FPMATH_MODE="BF16")
    after = _count_launches(other)
    assert {name: after[name] for name in before} == before
    assert sum(after.values()) == 2 * sum(before.values())


def test_a_trial_that_fails_ends_the_search_in_one_line_and_leaves_no_process(
    searched: Workspace, tmp_path: Path
) -> None:
    bad = searched.copy(tmp_path / "project")
    bad.change({"tracking.kind": "none", "train.seed": 7})
    mark = new_mark()
    with none_left_of(mark):
        done = bad.run(*SEARCH, ok=False, FAULT="rank=0,step=2,kind=sigkill", **mark)
        assert left_of(mark) == {}
    assert done.returncode == ExitCode.DISTRIBUTED
    assert done.stdout.splitlines()[-1].startswith("search: trial-")
    assert "trial.log" in done.stdout.splitlines()[-1]


def test_trials_that_diverge_are_out_and_a_search_of_such_alone_says_so(
    searched: Workspace, warm: Path, tmp_path: Path
) -> None:
    bad = searched.copy(tmp_path / "project", programs=warm)
    bad.change({"tracking.kind": "none", "train.seed": 8, "search.trials": 2})
    done = bad.run(*SEARCH, ok=False, FAULT="rank=0,step=2,kind=nan")
    assert done.returncode == ExitCode.DIVERGED
    assert "trial-1: out of the search: train: cell 1proc" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("search: all trials diverged by epoch 1; allowed")
    # They are not tried again.
    launches = _count_launches(bad)
    assert bad.run(*SEARCH, ok=False).returncode == ExitCode.DIVERGED
    assert _count_launches(bad) == launches


def _read_here() -> dict[str, Any]:
    return _read(Workspace(Path.cwd()))
