"""What is kept for comparisons that are long gone, and what never goes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.params import Params, load_params
from tasks.process.failure import ExitCode
from tasks.process.lock import lock_workspace
from tasks.store.prune import note_comparison, prune
from tests.finished_comparison import run_facts

DAY = 86_400.0


@pytest.fixture(autouse=True)
def _workspace(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_bytes((project / "params.yaml").read_bytes())


def _keep(entry: str, *, used_at: float, text: str = "kept") -> Path:
    file = Path(".work") / entry
    if not entry.endswith(".json"):
        file = file / "file"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(Path(".work") / entry, (used_at, used_at))
    return Path(".work") / entry


def _compared(*days: int) -> None:
    """Note a comparison on each of these days."""
    notes = [{"digest": str(day), "begun_at": day * DAY} for day in days]
    Path(".work").mkdir(exist_ok=True)
    Path(".work/comparisons.json").write_text(json.dumps(notes))


ENTRIES = [
    *("download/rows/a", "slices/a", "measure/a", "evaluation/a", "runs/c/segments/a", "runs/c/partial/a"),
    "search/trials/a",
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_none_of_the_last_comparisons_used_is_listed_and_goes_when_asked_for(entry: str) -> None:
    folder, name = entry.rsplit("/", 1)
    old = _keep(entry, used_at=2.5 * DAY)
    newer = _keep(f"{folder}/b{name}", used_at=3.5 * DAY)
    _compared(1, 2, 3, 4)
    assert "nothing to remove" in prune(keep=3, is_wanted=True)
    assert "nothing to remove" in prune(keep=5, is_wanted=True)
    said = prune(keep=2, is_wanted=False)
    assert f"last used 1970-01-03  {old}\n" in said
    assert str(newer) not in said
    assert old.exists()
    assert "removed" in prune(keep=2, is_wanted=True)
    assert not old.exists()
    assert newer.exists()


@pytest.mark.parametrize("run", ["c", "c/seeds/43"])
def test_what_data_holds_is_never_removed_however_long_it_was_not_used(run: str) -> None:
    linked = _keep("slices/linked", used_at=0.0)
    Path("data/slices").mkdir(parents=True)
    os.link(linked / "file", "data/slices/file")
    copied = _keep("runs/c/segments/fingerprint", used_at=0.0)
    (Path("data/runs") / run).mkdir(parents=True)
    segment = {"range": "0-8", "epoch": 1, "fingerprint": "fingerprint", "folder": "segments/0-8-epoch-1"}
    facts = run_facts("c", segments=[segment], final_checkpoint="x.pt")
    (Path("data/runs") / run / "run.json").write_text(json.dumps(facts))
    _compared(1, 2)
    assert "nothing to remove" in prune(keep=1, is_wanted=True)
    assert linked.exists()
    assert copied.exists()


def test_a_comparison_that_begins_removes_old_downloads_and_slices_and_nothing_else(project: Path) -> None:
    entries = [_keep(entry, used_at=0.5 * DAY) for entry in ENTRIES]
    _compared(*range(1, 9))
    params = load_params(project / "presets" / "embedded.yaml")
    note_comparison(params)
    note_comparison(params)
    assert all(entry.exists() for entry in entries), "nine comparisons were noted"
    note_comparison(_changed(params))
    assert [entry.exists() for entry in entries] == [False, False, True, True, True, True, True]


def test_a_comparison_that_begins_counts_what_the_last_one_left_in_data_as_used(project: Path) -> None:
    linked = _keep("slices/linked", used_at=0.0)
    Path("data").mkdir()
    os.link(linked / "file", "data/file")
    note_comparison(load_params(project / "presets" / "embedded.yaml"))
    assert linked.stat().st_mtime > 1e9


def _changed(params: Params) -> Params:
    return params.model_copy(update={"name": "another"})


@pytest.mark.parametrize("arguments", [["--keep", "0"], ["--keep", "all"], ["--keep", "101"]])
def test_a_number_that_is_none_is_one_line(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasks.store.prune", *arguments], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == ExitCode.CONFIGURATION
    assert done.stderr.startswith("prune: KEEP: got")
    assert done.stderr.count("\n") == 1


def test_nothing_is_removed_while_a_comparison_runs() -> None:
    old = _keep("slices/a", used_at=0.0)
    _compared(1, 2)
    command = [sys.executable, "-m", "tasks.store.prune", "--keep", "1", "--go", "1"]
    with lock_workspace("make compare"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.RESOURCES
    assert f"a comparison runs in this folder already: make compare, pid {os.getpid()}" in done.stderr
    Path(".dvc/tmp").mkdir(parents=True)
    Path(".dvc/tmp/rwlock").write_text('{"/x": {"write": {"pid": 1, "cmd": "dvc repro"}}}')
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, old.exists()) == (ExitCode.RESOURCES, True)
    assert "DVC, pid 1, runs a stage in this folder" in done.stderr
    Path(".dvc/tmp/rwlock").write_text('{"/x": {"write": {"pid": 4194305, "cmd": "dvc repro, killed"}}}')
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, old.exists()) == (0, False), done.stderr
