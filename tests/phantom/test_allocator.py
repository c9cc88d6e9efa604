"""How torch's allocator is set in a rank that has a card, which is not there."""

import json

import pytest

from tests.phantom.build import make_environment
from tests.processes import run_python
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


def test_memory_of_a_card_comes_in_segments_that_grow(phantom, tmp_path, monkeypatch):
    model, rows = make_tiny_model(tmp_path / "model"), make_slice(tmp_path / "rows", num_rows=16)
    config = make_config(tmp_path / "work", model, [rows], device="cuda", precision="bf16")
    write_json(tmp_path / "config.json", config)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    done = run_python("-c", _RANK, "--config", tmp_path / "config.json", **make_environment(phantom))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"code": 0, "is_expandable": True}, done.stderr
    (setting,) = facts_of(config)["settings"]
    assert setting["environment"]["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
