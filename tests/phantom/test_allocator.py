"""How torch's allocator is set in a rank that has a card, which is not there."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import PROJECT
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import facts_of
from training.process.files import write_json

pytestmark = pytest.mark.slow

_RANK = """
import json, os, sys
from training.__main__ import main
code = main()
# Not before: a rank sets the allocator and then imports torch.
import torch
settings = torch.cuda.memory._snapshot()["allocator_settings"]
json.dump({"code": code, "is_expandable": settings["expandable_segments"]}, sys.stdout)
sys.stdout.flush()
os._exit(0)
"""


def test_memory_of_a_card_comes_in_segments_that_grow(phantom, tmp_path):
    model, rows = make_tiny_model(tmp_path / "model"), make_slice(tmp_path / "rows", num_rows=16)
    config = make_config(tmp_path / "work", model, [rows], device="cuda", precision="bf16")
    write_json(tmp_path / "config.json", config)
    others = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _RANK, "--config", str(tmp_path / "config.json")],
        cwd=PROJECT, env={**others, **phantom.environment()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"code": 0, "is_expandable": True}, done.stderr
    (setting,) = facts_of(config)["settings"]
    assert setting["environment"]["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
