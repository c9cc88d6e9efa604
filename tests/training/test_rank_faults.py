"""What all ranks do when one of them goes wrong in mid-training: together, and with its name."""

import pytest

from tests.training.forked_ranks import last_words
from training.process.failure import FAILURES, read_failures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exact", "fault", "log_every_steps", "says"),
    [
        # Between log points, as well.
        (False, "kind=inf", 5, "loss is inf on rank 1; nothing of it was saved"),
        # In the fast mode that is the contract's (test_strategy_contract.py).
        (True, "kind=nan,section=backward", 1, "gradient norm is nan on every rank"),
    ],
)
def test_numbers_that_are_not_finite_on_one_rank_stop_all_at_that_step_with_its_name(
    fault, log_every_steps, says, exact, ranks, toy
):
    config = toy.tell(world_size=2, exact=exact, log_every_steps=log_every_steps, checkpoint_every_steps=1)
    assert ranks.launch(config, fault=f"rank=1,step=4,{fault}") == [5, 5], last_words(config)
    failures = read_failures(toy.folder / "work" / FAILURES)
    assert sorted(failure["rank"] for failure in failures) == [0, 1]
    for failure in failures:
        assert failure["reason"].startswith(f"diverged at step 4: {says}")
        assert "loss" in says or failure["reason"].endswith("it comes from rank 1")
    assert max((toy.folder / "work" / "partial").glob("*/step-*")).name == "step-00000003"
    assert "Traceback" not in last_words(config)
