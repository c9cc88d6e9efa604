"""The benchmark of the levers: every one of them is something that params.yaml can say."""

import dataclasses

import pytest

from benchmarks.levers import LEVERS, comparison
from tasks.params import Params
from training.config import TrainingConfig


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: f"{lever.name} {lever.ranks}")
def test_each_side_of_a_lever_is_a_comparison_that_params_yaml_may_hold(lever):
    fields = {field.name for field in dataclasses.fields(TrainingConfig)}
    sides = [lever.without, lever.overrides]
    assert sides[0] != sides[1]
    for side in sides:
        assert set(side) <= fields
        params = comparison().model_dump(mode="json")
        params["train"] |= {name: value for name, value in side.items() if name != "options"}
        params["cells"][str(lever.ranks)]["options"] = side.get("options", {})
        assert Params.model_validate(params).cells[str(lever.ranks)].world_size == lever.ranks
