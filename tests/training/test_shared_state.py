"""Strategies whose ranks share the state out: what they are equal to, to the bit."""

from pathlib import Path
from typing import Any

import pytest

from tasks.strategies import Work, fsdp2
from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import are_bitwise_equal, facts_of, weights_at_end
from tests.training.forked_ranks import ForkedRanks, last_words

pytestmark = pytest.mark.slow


def train(ranks: ForkedRanks, slices: list[Path], work: Path, strategy: str, **changes: Any) -> dict[str, Any]:
    """Return the config of a finished training of two ranks, unless `changes` say otherwise."""
    spread = {"strategy": strategy, "world_size": 2, "cell": "ranks", "learning_rate": 1e-3, **changes}
    return ranks.train(make_config(work, make_tiny_model(work.parent / "model", hidden_size=96), slices[:2], **spread))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"options": {"gradient_hook": "bf16", "bucket_mib": 0.05}},
        {"optimizer": "sgd"},
        {"world_size": 4},
        {"world_size": 3, "global_batch_size": 12},
    ],
    ids=["plain", "bf16 gradients", "SGD", "4 ranks", "3 ranks"],
)
def test_zero1_ends_with_the_weights_of_ddp_and_the_same_optimizer_state(
    changes: dict[str, Any], ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    runs = [train(ranks, slices, tmp_path / name / "work", name, **changes) for name in ("ddp", "zero1")]
    for index in range(2):
        assert are_bitwise_equal(*(weights_at_end(config, index) for config in runs))
        whole, shared = (facts_of(config, index)["optimizer_checksums"] for config in runs)
        assert len(whole) == runs[0]["world_size"]
        assert shared == whole[:1]


def test_zero1_refuses_fp16_in_one_line(ranks: ForkedRanks, slices: list[Path], tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    config = make_config(
        tmp_path / "work", model, slices[:1], strategy="zero1", world_size=2, cell="2proc", precision="fp16"
    )
    assert 0 not in ranks.launch(config)
    assert "precision: fp16 is not available for the strategy zero1" in last_words(config)


def test_layers_of_fsdp2_that_stay_gathered_give_the_same_bits_with_fewer_gathers(
    ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    runs = [
        train(ranks, slices, tmp_path / f"{option}" / "work", "fsdp2", options={"reshard_after_forward": option})
        for option in (True, False)
    ]
    assert are_bitwise_equal(*(weights_at_end(config) for config in runs))
    numbers = []
    for config in runs:
        facts = facts_of(config, 0)
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
    ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    spread = {"strategy": "fsdp2", "world_size": 3, "cell": "ranks", "global_batch_size": 12}
    # 131 rows of the embedding on 3 ranks: 44, 44 and 43.
    model = make_tiny_model(tmp_path / "model", hidden_size=32, vocab_size=131)
    at_once, in_parts = (make_config(tmp_path / name, model, slices[:1], **spread) for name in ("at_once", "in_parts"))
    ranks.train(at_once)
    codes = ranks.launch(in_parts, entry="tests.training.small_exchanges")
    assert codes == [0] * 3, last_words(in_parts)
    assert are_bitwise_equal(weights_at_end(at_once), weights_at_end(in_parts))
    for what in ("parameter_checksums", "optimizer_checksums"):
        assert facts_of(at_once)[what] == facts_of(in_parts)[what]
