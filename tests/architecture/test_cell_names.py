"""Whatever params.py takes for the name of a cell, DVC takes for the key of a stage."""

import json
import subprocess
import sys

import pytest
from ruamel.yaml import YAML

from tasks.params import Params
from tests.tasks.test_params import GOOD

_LIKE_OTHER_YAML = f"1 01 1e5 0x10 1_000 no null 2026-11-22 key item a- {'x' * 64}".split()
"""In quotes, names like any other."""
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


@pytest.mark.slow
def test_every_name_that_is_taken_is_a_stage_that_runs_once(tmp_path):
    def dvc(*arguments):
        return subprocess.check_output([sys.executable, "-m", "dvc", *arguments], cwd=tmp_path, text=True)

    params = YAML(typ="safe", pure=True).load(GOOD)
    params["cells"] = {name: {"strategy": "single", "world_size": 1} for name in _LIKE_OTHER_YAML}
    Params.model_validate(params)
    (tmp_path / "params.yaml").write_text(json.dumps(params))  # which is YAML with every name in quotes
    (tmp_path / "dvc.yaml").write_text(_PIPELINE)
    dvc("init", "--no-scm", "--quiet")
    dvc("repro", "--quiet")
    assert {made.parent.name for made in (tmp_path / "data" / "runs").glob("*/made")} == set(_LIKE_OTHER_YAML)
    assert "up to date" in dvc("status")
