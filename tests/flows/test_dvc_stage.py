"""What DVC finds changed, and what is read from the last words of a stage that failed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.dvc_stage import explain_failure
from flows.pipeline import list_changes as reasons_by_stage
from tests.flows.toy_project import ToyProject, make_toy_project


def reasons_to_run(stage: str) -> list[str]:
    return reasons_by_stage(stage)[stage]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    toy = make_toy_project(tmp_path_factory.mktemp("toy") / "toy")
    subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--quiet"],
        cwd=toy.folder,
        env=toy.environment(),
        check=True,
        timeout=240,
    )
    return toy


@pytest.fixture
def toy(finished: ToyProject, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyProject]:
    monkeypatch.chdir(finished.folder)
    yield finished
    assert reasons_to_run("train@2proc") == [], "the test has put back what it changed"


def test_finished_stage_has_no_reason_to_run_unless_it_always_does(toy: ToyProject) -> None:
    assert reasons_to_run("slice") == []
    assert reasons_to_run("fingerprint") == ["always changed"]


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
def test_what_changed_is_named(toy: ToyProject, file: str, old: str, new: str, expected: list[str]) -> None:
    path = toy.folder / file
    before = path.read_bytes()
    path.unlink()  # a hard link into the cache must not be written through
    path.write_bytes(before)
    toy.change(file, old, new)
    assert reasons_to_run("train@2proc") == expected
    path.write_bytes(before)


def test_missing_output_is_named(toy: ToyProject) -> None:
    output = toy.folder / "data/runs/2proc.txt"
    content = output.read_bytes()
    output.unlink()
    assert reasons_to_run("train@2proc") == ["data/runs/2proc.txt (deleted)"]
    output.write_bytes(content)


_DVC_SAYS = "ERROR: failed to reproduce 'train@2proc': failed to run: python -m tasks.train 2proc, exited with "


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["> python -m tasks.train", "step 3", "train: loss is NaN", _DVC_SAYS + "5"], ("train: loss is NaN", 5)),
        (["Running stage 'train@2proc':", "> python", _DVC_SAYS + "6"], ("its command exited with 6", 6)),
        (["ValueError: 3", _DVC_SAYS + "-9"], ("ValueError: 3", 137)),
        (["ERROR: data/slices is missing"], ("data/slices is missing", 1)),
        (["ERROR: 'data/slices' is busy, it is", "  (PID 7): dvc"], ("'data/slices' is busy, it is   (PID 7): dvc", 4)),
        ([], ("DVC ended with 255", 1)),
    ],
)
def test_failure_is_the_stages_own_line_and_exit_code(lines: list[str], expected: tuple[str, int]) -> None:
    assert explain_failure(lines, 255) == expected


def test_project_without_the_stage_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc.exceptions import DvcException

    toy = make_toy_project(tmp_path / "toy")
    monkeypatch.chdir(toy.folder)
    with pytest.raises(DvcException, match="deploy"):
        reasons_to_run("deploy")
