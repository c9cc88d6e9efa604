"""The strategy pipeline: how a model is cut, and any number of stages to the same bits."""

import time
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.conftest import Trained, are_bitwise_equal, facts_of, weights_at_end
from training.model.cut import _weigh, balance
from training.model.part_times import time_parts

_NOT_CLIPPED = 1e9


class _Slow(nn.Module):
    """A layer that takes as long as it is told, with a weight of one number."""

    def __init__(self, seconds: float, width: int) -> None:
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.ones(1, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return hidden * self.weight


def test_parts_are_timed_one_by_one_and_those_alike_alike_and_what_is_not_called_goes_by_its_weights() -> None:
    layers = [_Slow(0.04, 3), _Slow(0.01, 4), _Slow(0.012, 4)]
    embedding, head = nn.Embedding(5, 3), nn.Linear(3, 4)

    def run() -> None:
        hidden = embedding(torch.zeros(2, 6, dtype=torch.long))
        layers[0](hidden)
        for layer in layers[1:]:
            layer(torch.ones(2, 6, 4))

    groups = [[embedding], *[[layer] for layer in layers], [head]]
    found = time_parts(groups, run, torch.device("cpu"))
    first, slow, quick, same, uncalled = (one for (one,) in found)
    assert uncalled is None
    # Sleep takes no less than it is told.
    assert (first > 0, quick >= 0.011, slow >= 0.04, quick) == (True, True, True, same)
    assert all(part.grad is None for layer in layers for part in layer.parameters())
    # 12 weights of the head, against 3 + 4 + 4 of the layers.
    costs = _weigh(groups, found)
    assert costs[-1] == pytest.approx(1e9 * (slow + 2 * quick) * 12 / 11, rel=1e-6)
    assert costs[1:-1] == [round(1e9 * one) for one in (slow, quick, quick)]
    assert _weigh(groups, None) == [0, 3, 4, 4, 12]


@pytest.mark.parametrize(
    ("costs", "num_stages", "more", "first_layers"),
    [
        ([1, 1, 1, 1], 2, {}, [0, 2]),
        # A head as heavy as two layers is made up for by layers.
        ([1, 1, 1, 1], 2, {"after": 2}, [0, 3]),
        ([1, 1, 1, 1], 2, {"before": 2}, [0, 1]),
        ([5, 1, 1, 1], 2, {}, [0, 1]),
        ([1, 2, 3], 3, {"before": 9, "after": 9}, [0, 1, 2]),
        ([1, 1, 1], 1, {}, [0]),
    ],
)
def test_stages_are_cut_so_that_the_costliest_is_as_cheap_as_can_be(
    costs: list[int], num_stages: int, more: dict[str, int], first_layers: list[int]
) -> None:
    ends = [*first_layers[1:], len(costs)]
    assert balance(costs, num_stages, **more) == [*map(range, first_layers, ends)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "spread"),
    [
        ("untied", {"world_size": 2, "options": {"schedule": "gpipe"}}),
        # The last step has 3 micro-batches: no whole round of it, and fewer than there are stages.
        ("untied", {"world_size": 2, "options": {"schedule": "interleaved"}}),
        ("untied", {"world_size": 2, "options": {"cut": "time"}}),
        ("untied", {"world_size": 4}),
        ("dropout", {"world_size": 2}),
    ],
    ids=str,
)
def test_without_ties_any_number_of_stages_and_any_schedule_gives_the_bits_of_one_process(
    model: str, spread: dict[str, Any], trained: Trained
) -> None:
    same = {"model": model, "max_grad_norm": _NOT_CLIPPED}
    one, config = trained(**same), trained(**same, **spread, strategy="pipeline")
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(one))
    # Layers alike cost alike, and by time looking rows up costs something.
    costs = facts_of(config)["exchange"]["part_costs"]
    assert (costs[0] > 0) == (spread.get("options", {}).get("cut") == "time")
    assert len(set(costs[1:-1])) == 1
