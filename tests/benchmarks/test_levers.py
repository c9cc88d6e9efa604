"""The benchmark of the levers: every one of them is something that params.yaml can say."""

import dataclasses

import pytest

from benchmarks.levers import LEVERS, Lever, comparison, compute_gain
from tasks.params import Params
from training.config import TrainingConfig


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: f"{lever.name} {lever.ranks}")
def test_each_side_of_a_lever_is_a_comparison_that_params_yaml_may_hold(lever: Lever) -> None:
    fields = {field.name for field in dataclasses.fields(TrainingConfig)}
    sides = [lever.without, lever.overrides]
    assert sides[0] != sides[1]
    for side in sides:
        assert set(side) <= fields
        params = comparison().model_dump(mode="json")
        params["train"] |= {name: value for name, value in side.items() if name != "options"}
        params["cells"][str(lever.ranks)]["options"] = side.get("options", {})
        assert Params.model_validate(params).cells[str(lever.ranks)].world_size == lever.ranks


def test_a_gain_is_seconds_without_over_seconds_with_and_pays_for_its_warm_up() -> None:
    without = {"seconds": [2.0, 2.0] * 6, "positions": 1.5, "warm_up_seconds": 1.0}
    found = compute_gain(without, {"seconds": [1.5, 1.7] * 6, "positions": 1.0, "warm_up_seconds": 5.0})
    assert found["gain"][0] == pytest.approx(2.0 / 1.6)
    assert found["break_even_steps"] == pytest.approx(4.0 / 0.4)
    assert found["positions_per_token"] == [1.5, 1.0]
