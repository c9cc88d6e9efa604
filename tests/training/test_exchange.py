"""Options of how ddp exchanges gradients: what they change of the weights, and what is counted."""

import pytest

from tasks.equivalence.reference.update import OneProcess, make_other_orders, make_rank_order
from tests.gpu.steps import read_told
from tests.training.conftest import facts_of, relative_l2, weights_at_end
from tests.training.replays import train_one_process

_TWO = {"model": "large", "world_size": 2}
"""A tied model of 1.8 MB: more than one bucket."""


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["bf16", "fp16"])
def test_half_the_bytes_are_sent_in_16_bit_as_one_process_that_rounds_so_computes_it(hook, trained, toy):
    plain, config = trained(**_TWO), trained(**_TWO, options={"gradient_hook": hook})
    whole = sum({part.data_ptr(): part.nbytes for part in weights_at_end(config).values()}.values())
    for one, num_bytes in ((plain, whole), (config, whole / 2)):
        facts = facts_of(one)
        buckets = facts["exchange"]["bucket_bytes"]
        assert (len(buckets) > 1, sum(buckets)) == (True, whole)
        assert facts["traffic"]["all_reduce"] == {"number": 6 * len(buckets), "num_bytes": 6 * num_bytes}
        # What torch itself recorded of DDP's calls, and not what is reckoned from its buckets.
        recorded = facts["recorded_exchanges"]
        assert (recorded["number"], recorded["num_bytes"]) == (6 * len(buckets), 6 * num_bytes)
    assert 0 < relative_l2(weights_at_end(config), weights_at_end(plain)) < 2e-3
    settings = read_told(config, toy.folder)
    assert relative_l2(weights_at_end(config), train_one_process(settings)) < 1e-6
    orders = make_rank_order(settings), *make_other_orders(settings)
    expected, *others = OneProcess(settings).gradient(1, *orders).by_order
    # Room between what re-ordering does and a wrong gradient, which is off by 4.5e-2 and more.
    assert max(relative_l2(other, expected) for other in others) < 1e-3
