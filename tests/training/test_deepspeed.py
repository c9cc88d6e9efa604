"""DeepSpeed: what of it no other strategy has. All else stands in the contract of the strategies."""

import importlib.metadata
import os
import subprocess
import sys

import pytest

from tests.extras import skip_without
from tests.training.conftest import facts_of
from training.process.files import write_json

skip_without("deepspeed")

STAGES = {"2": {"stage": 2}, "3": {"stage": 3, "whole_below": 1000}}


@pytest.mark.slow
def test_it_trains_in_the_environment_that_the_other_cells_have(toy):
    config = toy.tell(strategy="deepspeed", options=STAGES["2"])
    write_json(toy.folder / "config.json", config)
    # This process imported it, which told torch something.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
    command = [sys.executable, "-m", "training", "--config", str(toy.folder / "config.json")]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (setting,) = facts_of(config)["settings"]
    assert not [name for name in setting["environment"] if name.startswith("PYTORCH_")], setting
    assert setting["packages"] == {"deepspeed": importlib.metadata.version("deepspeed")}
