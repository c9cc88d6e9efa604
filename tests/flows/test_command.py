"""`ddp-compare`: what it hands on, what it changes, and what it refuses."""

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.command import app


@pytest.fixture
def here(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the presets and a params.yaml of its own."""
    (tmp_path / "presets").symlink_to(project / "presets")
    (tmp_path / "params.yaml").write_text(f"# mine\n{(project / 'presets' / 'embedded.yaml').read_text()}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        (["run", "-v", "-S", "measure.speed=false"], ["flows", "--verbose"]),
        (["run", "--preset", "imdb"], ["flows"]),
        (["rehearse", "--leave-out", "2x T4"], ["tasks.rehearsal", "--leave-out", "--", "2x T4"]),
        (["serve"], ["flows.serve"]),
    ],
)
def test_a_command_becomes_the_module_that_does_it(
    typed: list[str], becomes: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: called.append(words))
    assert CliRunner().invoke(app, typed).exit_code == 0
    assert called == [[sys.executable, "-m", *becomes]]
    text = (here / "params.yaml").read_text()
    assert ("speed: false" in text, "name: imdb" in text) == ("-S" in typed, "--preset" in typed)


def test_a_dry_run_says_what_would_run_and_leaves_params_as_they_were(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (here / "params.yaml").read_bytes()
    monkeypatch.setattr(os, "execv", None)
    said = CliRunner().invoke(app, ["run", "--dry-run", "--preset", "imdb", "-S", "train.epochs=3"])
    assert said.exit_code == 0, said.output
    assert "params.yaml: train.epochs: 20 -> 3\n" in said.output
    assert "  train@4gpu: has not run here before\n" in said.output
    assert (here / "params.yaml").read_bytes() == before
