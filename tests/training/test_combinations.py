"""The table of what goes together: a refusal names what was given and the remedy."""

import pytest

from training.combinations import COMPILE, EXACT, FOUR_BITS, find_conflict, split_key


@pytest.mark.parametrize(
    ("asked", "strategy", "workload", "problem"),
    [
        ({}, "pipeline", "causal_lm", None),
        (
            {EXACT: split_key(EXACT, "train.")}, "zero1", "causal_lm",
            "train.exact: got true with cells.one.strategy zero1; allowed: false, or the strategy ddp or single",
        ),
        (
            {}, "pipeline", "image_classification",
            "cells.one.strategy: got pipeline with workload image_classification; allowed: "
            "ddp, deepspeed, fsdp2, single, zero1",
        ),
        (
            {COMPILE: split_key(COMPILE, "train.")}, "ddp", "image_classification",
            "train.compile: got true with workload image_classification; allowed: false, or the workload "
            "causal_lm or instruction or sequence_classification",
        ),
        (
            {COMPILE: split_key(COMPILE, "train."), FOUR_BITS: split_key(FOUR_BITS, "train.")}, "ddp", "causal_lm",
            "train.compile: got true with train.adapter.base nf4; allowed: false, or another train.adapter.base",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said_with_the_remedy(asked, strategy, workload, problem):
    assert find_conflict(asked, strategy=strategy, workload=workload, of_cell="cells.one.") == problem
