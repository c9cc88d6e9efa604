"""What DVC finds changed, what is said before a comparison starts, and how a stage that failed is explained."""

import os

import pytest
from dvc.lock import FAILED_TO_LOCK_MESSAGE

from flows.pipeline import (
    StageFailed,
    describe_plan,
    explain_failure,
    find_cached,
    list_changes,
    list_stages,
    remember_seconds,
)
from tasks.process.logs import SILENT
from tasks.reporting.provenance import STAGE_SECONDS
from tests.flows.toy_project import make_toy_project

STAGES = list_stages(["1proc", "2proc"])


def reasons_to_run(stage):
    return list_changes(stage)[stage]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    toy = make_toy_project(tmp_path_factory.mktemp("toy") / "toy")
    toy.repro()
    return toy


@pytest.fixture
def toy(finished, monkeypatch):
    monkeypatch.chdir(finished.folder)
    yield finished
    assert reasons_to_run("train@2proc") == [], "the test has put back what it changed"


def test_finished_stage_has_no_reason_to_run_unless_it_always_does(toy):
    assert reasons_to_run("slice") == []
    assert reasons_to_run("fingerprint") == ["always changed"]


def test_a_look_at_what_is_cached_says_that_nobody_sees_it(monkeypatch):
    asked = {}

    def reproduce(*stages, environment, on_output):
        asked.update(dict.fromkeys(stages, environment))
        return 1

    monkeypatch.setattr("flows.pipeline.reproduce", reproduce)
    assert find_cached({"fingerprint": ["always changed"], "slice": []}) == {}
    assert SILENT in asked["fingerprint"]


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("params.yaml", "seed: 1", "seed: 2", ["params.yaml (train)"]),
        ("params.yaml", "strategy: ddp", "strategy: other", ["params.yaml (cells.2proc)"]),
        ("params.yaml", "strategy: single", "strategy: other", []),
        ("data/slices.txt", "sliced", "otherwise", ["data/slices.txt (modified)"]),
        ("data/runs/2proc.txt", "1", "2", ["data/runs/2proc.txt (modified)"]),
        ("dvc.yaml", "train@${key} data", "train@${key}  data", ["changed command"]),
    ],
)
def test_what_changed_is_named(toy, file, old, new, expected):
    path = toy.folder / file
    before = path.read_bytes()
    path.unlink()  # a hard link into the cache must not be written through
    path.write_bytes(before)
    toy.change(file, old, new)
    assert reasons_to_run("train@2proc") == expected
    path.write_bytes(before)


_DVC_SAYS = "ERROR: failed to reproduce 'train@2proc': failed to run: python -m tasks.train 2proc, exited with "


_STORAGE_SAYS = [f"failed to reproduce 'slice': [Errno {number}] {os.strerror(number)}" for number in (28, 122, 30)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["> python -m tasks.train", "step 3", "train: loss is NaN", _DVC_SAYS + "5"], ("train: loss is NaN", 5)),
        (["Running stage 'train@2proc':", "> python", _DVC_SAYS + "6"], ("its command exited with 6", 6)),
        (["ValueError: 3", _DVC_SAYS + "-9"], ("ValueError: 3", -9)),
        (["ERROR: data/slices is missing"], ("data/slices is missing", 1)),
        (
            ["ERROR: 'data/slices' is busy, it is being blocked by:", "  (PID 7): dvc"],
            ("'data/slices' is busy, it is being blocked by: (PID 7): dvc", 4),
        ),
        ([f"ERROR: {FAILED_TO_LOCK_MESSAGE}"], (FAILED_TO_LOCK_MESSAGE, 4)),
        (["ERROR: './dvc.lock' validation failed."], ("'./dvc.lock' validation failed.", 1)),
        (["ERROR: missing data 'reports/blocks.parquet'"], ("missing data 'reports/blocks.parquet'", 1)),
        *((["ERROR: " + said], (said + "; free space or choose another disk", 4)) for said in _STORAGE_SAYS),
        ([], ("DVC ended with 255", 1)),
    ],
)
def test_failure_is_the_stages_own_line_and_exit_code(lines, expected):
    assert explain_failure(lines, 255) == expected
    assert StageFailed(*expected).exit_code == (137 if expected[1] == -9 else expected[1])


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_damaged_file_of_times_is_none(empty_folder):
    remember_seconds("upload", 5.0)
    STAGE_SECONDS.write_text('{"upload": ')
    assert "for the first time" in describe_plan(STAGES, {})
    remember_seconds("upload", 5.0)
    assert '"upload": 5.0' in STAGE_SECONDS.read_text()
