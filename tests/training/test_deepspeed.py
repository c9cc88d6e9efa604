"""DeepSpeed: what of it no other strategy has. All else stands in the contract of the strategies."""

import importlib.metadata
import os

import pytest

from tests.extras import skip_without
from tests.processes import run_python
from tests.training.conftest import facts_of
from training.process.files import write_json

skip_without("deepspeed")


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_it_trains_in_the_environment_that_the_other_cells_have(toy, monkeypatch):
    config = toy.tell(strategy="deepspeed", options={"stage": 2})
    write_json(toy.folder / "config.json", config)
    # This process imported it, which told torch something.
    for name in [name for name in os.environ if name.startswith("PYTORCH_")]:
        monkeypatch.delenv(name)
    done = run_python("-m", "training", "--config", toy.folder / "config.json")
    assert done.returncode == 0, done.stderr
    (setting,) = facts_of(config)["settings"]
    assert not [name for name in setting["environment"] if name.startswith("PYTORCH_")], setting
    assert setting["packages"] == {"deepspeed": importlib.metadata.version("deepspeed")}
