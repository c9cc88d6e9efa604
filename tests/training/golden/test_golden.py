"""Numbers that move need another NUMERICS_VERSION: what was finished with the old ones is not used any more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.extras import skip_without
from tests.tiny import make_config, make_tiny_workload
from tests.training.forked_ranks import ForkedRanks
from tests.training.golden import trainings
from tests.training.golden.trainings import (
    describe_platform,
    find_moved,
    list_trainings,
    read_golden,
    read_numbers,
    train,
)
from training.numerics import NUMERICS_VERSION


@pytest.mark.parametrize("name", list_trainings())
def test_the_numbers_are_those_of_the_golden_file(name: str, tmp_path: Path, ranks: ForkedRanks) -> None:
    if "deepspeed" in name:
        skip_without("deepspeed")
    assert (moved := find_moved(name, train(name, list_trainings()[name], tmp_path, ranks), read_golden())) is None, (
        moved
    )


def test_the_golden_file_has_nothing_that_is_not_trained() -> None:
    assert list_trainings().keys() == read_golden()["numbers"].keys()


@pytest.mark.parametrize("platform", ["this one", "another one"])
def test_a_changed_constant_of_the_optimizer_moves_them(
    platform: str, tmp_path: Path, train_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, adamw = "causal_lm single", torch.optim.AdamW
    model, slices = make_tiny_workload("causal_lm", tmp_path)

    def train_once(folder: str) -> trainings.Numbers:
        config = make_config(tmp_path / folder, model, slices[1:], global_batch_size=12, micro_batch_size=3)
        train_here(config)
        return read_numbers(config)

    golden = {
        "numerics_version": NUMERICS_VERSION,
        "platform": describe_platform() if platform == "this one" else platform,
        "numbers": {name: train_once("before")},
    }
    assert find_moved(name, train_once("again"), golden) is None
    monkeypatch.setattr(torch.optim, "AdamW", lambda *told, **more: adamw(*told, **more, eps=1e-6))
    moved = find_moved(name, train_once("changed"), golden)
    assert moved is not None
    assert moved.startswith(f"{name}: ")
    assert "raise NUMERICS_VERSION in training/numerics.py" in moved
    # Once it is raised, the file is to be renewed.
    monkeypatch.setattr(trainings, "NUMERICS_VERSION", NUMERICS_VERSION + 1)
    assert str(find_moved(name, train_once("raised"), golden)).endswith("python -m tests.training.golden")
