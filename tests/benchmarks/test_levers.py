"""The benchmark of the levers: every one of them is something that params.yaml can say."""

import dataclasses

import pytest

from benchmarks import levers_loss
from benchmarks.levers import LEVERS, Lever, comparison
from tasks.params import Params
from training.config import TrainingConfig


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: f"{lever.name} {lever.ranks} {lever.has_link}")
def test_each_side_of_a_lever_is_a_comparison_that_params_yaml_may_hold(lever: Lever) -> None:
    fields = {field.name for field in dataclasses.fields(TrainingConfig)}
    sides = [lever.without, lever.overrides]
    assert lever.is_no_sync or sides[0] != sides[1]
    for side in sides:
        assert set(side) <= fields
        params = comparison().model_dump(mode="json")
        params["train"] |= {name: value for name, value in side.items() if name != "options"}
        params["cells"][str(lever.ranks)]["options"] = side.get("options", {})
        assert Params.model_validate(params).cells[str(lever.ranks)].world_size == lever.ranks


def test_the_loss_is_timed_on_whole_logits_and_in_each_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levers_loss, "ROWS", 64)
    monkeypatch.setattr(levers_loss, "CHUNKS", (16, 64))
    found = levers_loss.measure_loss(256)
    assert list(found["gains"]) == ["16 rows", "64 rows"]
    assert all(low <= value <= high for value, low, high in found["gains"].values())
    assert found["logits_mib"] == {"whole logits": 0.0625, "16 rows": 0.015625, "64 rows": 0.0625}
