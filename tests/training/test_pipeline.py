"""The strategy pipeline: how a model is cut, and any number of stages to the same bits."""

import pytest

from tests.training.conftest import are_bitwise_equal, weights_at_end
from training.strategies.pipeline.split import balance


@pytest.mark.parametrize(
    ("costs", "num_stages", "more", "first_layers"),
    [
        ([1, 1, 1, 1], 2, {}, [0, 2]),
        # A head as heavy as two layers is made up for by layers.
        ([1, 1, 1, 1], 2, {"after": 2}, [0, 3]),
        ([1, 2, 3], 3, {"before": 9, "after": 9}, [0, 1, 2]),
    ],
)
def test_stages_are_cut_so_that_the_costliest_is_as_cheap_as_can_be(costs, num_stages, more, first_layers):
    ends = [*first_layers[1:], len(costs)]
    assert balance(costs, num_stages, **more) == [*map(range, first_layers, ends)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "schedule"),
    # The last step has 3 micro-batches: no whole round of it, and fewer than there are stages.
    [(2, "interleaved"), (4, "1f1b")],
)
def test_without_ties_any_number_of_stages_and_any_schedule_gives_the_bits_of_one_process(
    world_size, schedule, trained
):
    same = {"model": "untied", "max_grad_norm": 1e9}
    config = trained(**same, world_size=world_size, strategy="pipeline", options={"schedule": schedule})
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(trained(**same)))
