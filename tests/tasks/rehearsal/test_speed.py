"""The roofline, recomputed by hand."""

from collections import Counter
from dataclasses import replace

import pytest

from tasks.rehearsal.cards import Card
from tasks.rehearsal.speed import StepLoad, model_speedup, model_tokens_per_second
from training.probing.live_memory import Work

_CARD = Card(
    name="100GB,1000GB/s,100TFLOP/s", memory_gib=90, memory_source="", gb_per_second=1000, bandwidth_source="",
    link_gb_per_second=10, link_source="", capability=(8, 0), tflops=100,
)  # fmt: skip


def _load(**changes):
    # Two products: one of 6e12 operations and little memory, one that is all memory (90 GB).
    work = Work(
        products=Counter({(6e12, 0, True): 1, (1e9, 90 * 10**9, True): 1}), other_bytes=90 * 10**9, num_kernels=2
    )
    told = {
        "work": work, "positions_rehearsed": 1000, "positions": 2000.0, "num_micro_batches": 2.0, "tokens": 1800.0,
        "num_updated": 0.0, "world_size": 1, "precision": "bf16", "is_modelled": True,
    }  # fmt: skip
    return StepLoad(**told | changes)


@pytest.mark.parametrize(
    ("changes", "fast", "slow"),
    [
        # At most: 75 % of 100 TFLOP/s and 90 % of 1,000 GB/s; at least: 40 % and 60 %. Two such micro-batches per step.
        ({}, 2 * (6 / 75 + 90 / 900 + 90 / 900), 2 * (6 / 40 + 90 / 600 + 90 / 600)),
        # An update moves 44 bytes per parameter.
        ({"num_updated": 1e9}, 2 * 0.28 + 44 / 900, 2 * 0.45 + 44 / 600),
        # Small kernels take what the host needs to launch them.
        ({"work": Work(num_kernels=100_000)}, 0.8, 2.0),
    ],
)
def test_a_step_takes_its_arithmetic_its_memory_or_its_launches_at_the_assumed_shares_of_the_peaks(changes, fast, slow):
    found = model_tokens_per_second(_load(**changes), _CARD)
    assert (found.high, found.low) == (pytest.approx(1800 / fast), pytest.approx(1800 / slow))


def test_an_exchange_is_hidden_behind_the_backward_at_best_and_not_at_all_at_worst():
    alone = _load()
    two = replace(alone, world_size=2, work=replace(alone.work, exchanged=Counter({"allreduce_": 10**9})))
    found, speedup = model_tokens_per_second(two, _CARD), model_speedup(two, alone, _CARD)
    assert speedup is not None
    # 1 GB once over a link of 10 GB/s at 40 %, beside 0.9 s of two micro-batches.
    assert found.low == pytest.approx(1800 / (2 * 0.45 + 1 / 4))
    # At 80 % it takes 0.125 s, less than the 0.187 s of a backward.
    assert found.high == pytest.approx(1800 / (2 * 0.28))
    assert speedup.high == pytest.approx(1.0)
    # A fast card beside a slow link loses most: 0.56 s alone, and 0.25 s more.
    assert speedup.low == pytest.approx(0.56 / 0.81)


def test_nothing_is_said_where_the_card_is_not_known():
    assert model_tokens_per_second(_load(precision="fp32"), _CARD) is None
    assert model_tokens_per_second(_load(world_size=2), replace(_CARD, link_gb_per_second=None)) is None
    assert model_tokens_per_second(_load(), replace(_CARD, link_gb_per_second=None)) is not None
