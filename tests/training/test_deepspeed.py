"""DeepSpeed: what of it no other strategy has. All else stands in the contract of the strategies."""

import importlib.metadata
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tasks.params.choices import read_constant
from tasks.strategies import deepspeed as profile
from tests.extras import skip_without
from tests.training.conftest import Toy, Trained, facts_of
from tests.training.forked_ranks import ForkedRanks, last_words
from training.process.files import write_json

skip_without("deepspeed")

STAGES: dict[str, dict[str, Any]] = {"2": {"stage": 2}, "3": {"stage": 3, "whole_below": 1000}}


def test_the_profile_knows_the_strategys_own_default() -> None:
    options = read_constant("training/strategies/deepspeed.py", "OPTIONS")
    assert profile.count_copies(2, {}) == profile.count_copies(2, {"stage": options["stage"][0]})


@pytest.mark.slow
def test_small_buckets_are_reduced_one_by_one(trained: Trained) -> None:
    one, many, most = (
        facts_of(trained(strategy="deepspeed", world_size=2, learning_rate=1e-3, options={"bucket_mib": size}))
        for size in (100, 0.1, 1e-9)
    )
    assert one["exchange"]["num_buckets"] == 1
    assert 2 < many["exchange"]["num_buckets"] < most["exchange"]["num_buckets"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_shares_that_are_updated_are_observed_as_weights(stage: str, ranks: ForkedRanks, toy: Toy) -> None:
    config = toy.tell(strategy="deepspeed", options=STAGES[stage])
    assert ranks.launch(config, entry="tests.training.observing") == [0], last_words(config)
    parts = json.loads((toy.folder / "work" / "observed-0.json").read_bytes())["parts"]
    size = json.loads((toy.models("tiny") / "manifest.json").read_bytes())["num_parameters"] * 4
    # Of one rank the share is the whole: the model has its weights, and what is updated is as large again.
    assert parts["weights"] == pytest.approx(2 * size, rel=0.05)
    assert parts["moments"] == pytest.approx(2 * size, rel=0.05)


@pytest.mark.slow
def test_it_trains_in_the_environment_that_the_other_cells_have(toy: Toy) -> None:
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
