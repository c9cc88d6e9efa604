"""Strategies whose ranks share the state out: what they are equal to, to the bit."""

from typing import Any

import pytest

from tasks.strategies import Work, fsdp2
from tests.training.conftest import Toy, Trained, are_bitwise_equal, facts_of, weights_at_end
from tests.training.forked_ranks import ForkedRanks, last_words

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"gradient_hook": "bf16", "bucket_mib": 0.05}},
        {"optimizer": "sgd"},
        {"world_size": 3, "global_batch_size": 12},
    ],
    ids=["bf16 gradients", "SGD", "3 ranks"],
)
def test_zero1_ends_with_the_weights_of_ddp_and_the_same_optimizer_state(
    changes: dict[str, Any], trained: Trained
) -> None:
    runs = [trained(**{"world_size": 2, "num_slices": 2, "strategy": name, **changes}) for name in ("ddp", "zero1")]
    for index in range(2):
        assert are_bitwise_equal(*(weights_at_end(config, index) for config in runs))
        whole, shared = (facts_of(config, index)["optimizer_checksums"] for config in runs)
        assert len(whole) == runs[0]["world_size"]
        assert shared == whole[:1]


def test_layers_of_fsdp2_that_stay_gathered_give_the_same_bits_with_fewer_gathers(trained: Trained) -> None:
    runs = [
        trained(strategy="fsdp2", world_size=2, options={"reshard_after_forward": option}) for option in (True, False)
    ]
    assert are_bitwise_equal(*(weights_at_end(config) for config in runs))
    numbers = []
    for config in runs:
        facts = facts_of(config)
        counted = facts["traffic"]["all_gather"]
        work = Work(
            world_size=2, num_steps=facts["num_steps"], num_rounds=(1, counted["number"]), gradient_bytes=1,
            options=config["options"], exchange=facts["exchange"],
        )  # fmt: skip
        # Of one micro-batch, at least.
        per_round = fsdp2.compute_expected_traffic(work)["all_gather"].number.least
        assert counted["number"] % per_round == 0
        numbers.append(counted["number"] / per_round)
    assert numbers[0] == numbers[1]


def test_what_fsdp2_gathers_in_many_exchanges_is_the_same_though_ranks_have_other_numbers_of_rows(
    trained: Trained, ranks: ForkedRanks, toy: Toy
) -> None:
    # 128 rows of the embedding on 3 ranks: 43, 43 and 42.
    spread = {"strategy": "fsdp2", "world_size": 3, "global_batch_size": 12}
    at_once, in_parts = trained(**spread), toy.tell(**spread)
    codes = ranks.launch(in_parts, entry="tests.training.small_exchanges")
    assert codes == [0] * 3, last_words(in_parts)
    assert are_bitwise_equal(weights_at_end(at_once), weights_at_end(in_parts))
    for what in ("parameter_checksums", "optimizer_checksums"):
        assert facts_of(at_once)[what] == facts_of(in_parts)[what]
