"""Whatever params.py takes for the name of a cell, DVC takes for the key of a stage."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.params import load_params
from tasks.process.failure import ConfigurationError
from tests.tasks.test_params import GOOD

_LIKE_OTHER_YAML = [
    "1", "01", "1e5", "0x10", "1_000", "no", "true", "null", "nan", "2026-11-22", "key", "item", "a-", "a_", "A", "a",
    "x" * 64,
]  # fmt: skip
"""In quotes, names like any other."""

_CELL = {"strategy": "single", "world_size": 1}
_PIPELINE = """\
stages:
  train:
    foreach: ${cells}
    do:
      cmd: mkdir -p data/runs/${key} && printf %s ${item.world_size} > data/runs/${key}/made
      params: [train, "cells.${key}"]
      outs:
        - data/runs/${key}
"""


def _params_of(names: list[str]) -> str:
    content: dict[str, Any] = YAML(typ="safe", pure=True).load(GOOD)
    content["cells"] = {name: dict(_CELL) for name in names}
    return json.dumps(content)  # which is YAML with every name in quotes


def _is_taken(name: str, folder: Path) -> bool:
    file = folder / "params.yaml"
    file.write_text(_params_of([name]), encoding="utf-8")
    try:
        load_params(file)
    except ConfigurationError:
        return False
    return True


def _dvc(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_name_that_is_taken_is_a_stage_that_runs_once(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    assert all(_is_taken(name, tmp_path) for name in _LIKE_OTHER_YAML)
    (folder / "params.yaml").write_text(_params_of(_LIKE_OTHER_YAML), encoding="utf-8")
    (folder / "dvc.yaml").write_text(_PIPELINE)
    _dvc(folder, "init", "--no-scm", "--quiet")
    _dvc(folder, "repro", "--quiet")
    assert {made.parent.name for made in (folder / "data" / "runs").glob("*/made")} == set(_LIKE_OTHER_YAML)
    assert "up to date" in _dvc(folder, "status")


@pytest.mark.parametrize("name", ["a.b", "a.", ".a", "1.5", "a/b", "..", "-a", "--", "a@b", "x" * 65, "", "a b", "ä"])
def test_what_no_stage_or_folder_can_be_called_is_refused(name: str, tmp_path: Path) -> None:
    assert not _is_taken(name, tmp_path)
