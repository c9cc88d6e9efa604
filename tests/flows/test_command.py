"""`ddp-compare`: what it hands on, what it changes, and what it refuses."""

import fcntl
import os
import sys

import pytest
from typer.testing import CliRunner

from flows.__main__ import _main as main
from flows.command import app
from tasks.process.failure import ResourceError
from tasks.process.lock import WORKSPACE


@pytest.fixture
def here(tmp_path, project, monkeypatch):
    """A folder with the presets and a params.yaml of its own."""
    (tmp_path / "presets").symlink_to(project / "presets")
    (tmp_path / "params.yaml").write_text(f"# mine\n{(project / 'presets' / 'embedded.yaml').read_text()}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("run -v -S measure.speed=false", "flows --verbose"),
        ("run --preset imdb", "flows"),
        ("rehearse --leave-out T4", "tasks.rehearsal --leave-out -- T4"),
        ("serve", "flows.serve"),
        ("retrain", "flows --retrain"),
    ],
)
def test_a_command_becomes_the_module_that_does_it(typed, becomes, here, monkeypatch):
    called = []
    monkeypatch.setattr(os, "execv", lambda _, words: called.append(words))
    assert CliRunner().invoke(app, typed).exit_code == 0
    assert called == [[sys.executable, "-m", *becomes.split()]]
    text = (here / "params.yaml").read_text()
    assert ("speed: false" in text, "name: imdb" in text) == ("-S" in typed, "--preset" in typed)


def test_a_dry_run_says_what_would_run_and_leaves_params_as_they_were(here, monkeypatch):
    before, names = (here / "params.yaml").read_bytes(), {path.name for path in here.iterdir()}
    monkeypatch.setattr(os, "execv", None)
    said = CliRunner().invoke(app, ["run", "--dry-run", "--preset", "imdb", "-S", "train.epochs=3"])
    assert said.exit_code == 0, said.output
    assert "params.yaml: train.epochs: 20 -> 3, in this dry run alone\n" in said.output
    assert "  train@4gpu: has not run here before\n" in said.output
    assert (here / "params.yaml").read_bytes() == before
    assert {path.name for path in here.iterdir()} - {".work"} == names


def test_a_preset_with_a_change_that_does_not_fit_leaves_params_as_they_were(here):
    before = (here / "params.yaml").read_bytes()
    for typed, why in (
        (["run", "--preset", "imdb", "-S", "train.epoch=3"], "did you mean epochs?"),
        # `make use` without one, and `make compare PRESET=`.
        (["use", ""], "PRESET: got ''; allowed: "),
        (["run", "--preset", ""], "PRESET: got ''; allowed: "),
    ):
        assert why in str(CliRunner().invoke(app, typed).exception)
    assert (here / "params.yaml").read_bytes() == before
    assert CliRunner().invoke(app, ["use", "imdb"]).exit_code == 0
    assert CliRunner().invoke(app, ["params"]).output == "params.yaml is valid\n"


def test_nothing_is_changed_or_removed_under_a_comparison_that_runs(here, monkeypatch):
    before = (here / "params.yaml").read_bytes()
    (here / WORKSPACE).parent.mkdir(parents=True, exist_ok=True)
    with (here / WORKSPACE).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for typed in (["use", "imdb"], ["run", "--dry-run", "--preset", "imdb"], ["params", "-S", "train.epochs=3"]):
            refused = CliRunner().invoke(app, typed)
            assert "a comparison runs in this folder already" in str(refused.exception)
        (here / ".work/runs/1gpu").mkdir(parents=True)
        monkeypatch.setattr(sys, "argv", ["flows", "--retrain"])
        with pytest.raises(ResourceError, match="a comparison runs in this folder already"):
            main()
    assert (here / ".work/runs/1gpu").is_dir()
    assert (here / "params.yaml").read_bytes() == before
