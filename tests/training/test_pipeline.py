"""The strategy pipeline: how a model is cut, and any number of stages to the same bits."""

import pytest

from tests.training.conftest import are_bitwise_equal, weights_at_end
from training.strategies.pipeline.split import balance

_NOT_CLIPPED = 1e9


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
    ("model", "spread"),
    [
        ("untied", {"world_size": 2, "options": {"schedule": "gpipe"}}),
        # The last step has 3 micro-batches: no whole round of it, and fewer than there are stages.
        ("untied", {"world_size": 2, "options": {"schedule": "interleaved"}}),
        ("untied", {"world_size": 4}),
        ("dropout", {"world_size": 2}),
    ],
    ids=str,
)
def test_without_ties_any_number_of_stages_and_any_schedule_gives_the_bits_of_one_process(model, spread, trained):
    same = {"model": model, "max_grad_norm": _NOT_CLIPPED}
    one, config = trained(**same), trained(**same, **spread, strategy="pipeline")
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(one))
