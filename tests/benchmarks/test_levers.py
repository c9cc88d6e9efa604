"""The benchmark of the levers: every one of them is something that params.yaml can say."""

import dataclasses
import itertools
from types import SimpleNamespace

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
    # Seconds of whole logits, 16 rows and 64 rows, by a clock that is looked at before and after each; the order turns.
    takes = [6.0, 4.0, 3.0]
    spans = [span for turn in range(levers_loss.ROUNDS + 1) for span in (takes if turn % 2 else reversed(takes))]
    readings = itertools.accumulate(part for span in spans for part in (1.0, span))
    monkeypatch.setattr(levers_loss, "time", SimpleNamespace(perf_counter=lambda: next(readings)))
    found = levers_loss.measure_loss(256)
    assert found["gains"] == {"16 rows": pytest.approx([1.5] * 3), "64 rows": pytest.approx([2.0] * 3)}
    assert found["logits_mib"] == {"whole logits": 0.0625, "16 rows": 0.015625, "64 rows": 0.0625}
