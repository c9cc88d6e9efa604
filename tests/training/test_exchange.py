"""Options of how ddp exchanges gradients: what they change of the weights, and what is counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.equivalence.orders import make_other_orders, make_rank_order
from tasks.equivalence.reference.update import OneProcess
from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.process.distributed import Ranks
from training.strategies import ddp
from training.workloads import causal_lm

pytestmark = pytest.mark.slow

Train = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied model of 1.8 MB: more than one bucket."""
    return make_tiny_model(tmp_path_factory.mktemp("exchange") / "model", hidden_size=128, num_layers=3)


@pytest.fixture(scope="module")
def train(ranks: ForkedRanks, model: Path, slices: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Return `train(world_size, **changes)`: 6 steps, the last with fewer micro-batches than 4 ranks."""
    done: dict[str, dict[str, Any]] = {}

    def trained(world_size: int, **changes: Any) -> dict[str, Any]:
        key = repr((world_size, changes))
        if key not in done:
            config = make_config(
                tmp_path_factory.mktemp("work"), model, slices[:1], world_size=world_size,
                strategy="ddp" if world_size > 1 else "single", **changes,
            )  # fmt: skip
            done[key] = ranks.train(config)
        return done[key]

    return trained


def _num_gradient_bytes(config: dict[str, Any]) -> int:
    parts = {part.data_ptr(): part for part in weights_at_end(config).values()}
    return sum(part.nbytes for part in parts.values())


@pytest.mark.parametrize("hook", ["bf16", "fp16"])
def test_half_the_bytes_are_sent_in_16_bit_and_the_weights_stay_near(hook: str, train: Train) -> None:
    plain, config = train(2), train(2, options={"gradient_hook": hook})
    facts = facts_of(config)
    assert len(facts["exchange"]["bucket_bytes"]) > 1
    assert (
        facts["traffic"]["all_reduce"]["number"]
        == 6 * len(facts["exchange"]["bucket_bytes"])
        == facts_of(plain)["traffic"]["all_reduce"]["number"]
    )
    assert sum(facts["exchange"]["bucket_bytes"]) == _num_gradient_bytes(config)
    assert facts["traffic"]["all_reduce"]["num_bytes"] == 6 * _num_gradient_bytes(config) / 2
    assert facts_of(plain)["traffic"]["all_reduce"]["num_bytes"] == 6 * _num_gradient_bytes(config)
    # What torch itself recorded of DDP's calls, and not what is reckoned from its buckets.
    for one in (facts, facts_of(plain)):
        recorded = one["recorded_exchanges"]
        assert recorded["num_steps"] == 6
        assert recorded["number"] == recorded["counted_number"] == one["traffic"]["all_reduce"]["number"]
        assert recorded["num_bytes"] == recorded["counted_bytes"] == one["traffic"]["all_reduce"]["num_bytes"]
    distance = relative_l2(weights_at_end(config), weights_at_end(plain))
    assert 0 < distance < 2e-3


@pytest.mark.parametrize("hook", ["bf16", "fp16"])
def test_one_process_that_rounds_as_the_exchange_does_gets_the_ranks_weights(
    hook: str, train: Train, tmp_path: Path
) -> None:
    config = train(2, options={"gradient_hook": hook})
    settings = parsed(config, tmp_path)
    process = OneProcess(settings)
    expected = process.update(make_rank_order(settings), on_step=lambda: None)
    others = [process.update(order, on_step=lambda: None) for order in make_other_orders(settings)]
    # Room between what re-ordering does and a wrong gradient, which is off by 4.5e-2 and more.
    assert max(relative_l2(other.gradient, expected.gradient) for other in others) < 1e-3
    assert max(relative_l2(other.weights, expected.weights) for other in others) < 1e-4
    assert relative_l2(weights_at_end(config), expected.weights) < 1e-6


def test_buckets_that_gradients_are_copied_to_give_the_same_bits(train: Train) -> None:
    weights = [weights_at_end(train(2, options=options)) for options in ({}, {"bucket_view": False})]
    assert relative_l2(*weights) == 0


@pytest.mark.parametrize("bucket_view", [True, False])
def test_exchanged_gradients_stay_in_the_buckets_unless_they_are_to_be_copied_back(
    bucket_view: bool, model: Path, slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    told = make_config(tmp_path, model, slices[:1], strategy="ddp", options={"bucket_view": bucket_view})
    workload: Any = causal_lm
    strategy = ddp.build(causal_lm.load_model(model), workload, parsed(told, tmp_path), alone)
    parts = [causal_lm.open_slice(slices[0]).collate(rows, seq_len=32) for rows in ([0, 1], [2, 3])]
    strategy.warm_up(parts[0])
    places: list[set[int]] = []
    strategy.on_gradient = lambda: places.append(
        {part.untyped_storage().data_ptr() for _, part in strategy.full_gradient()}
    )
    strategy.train_step(parts, num_targets=100, learning_rate=1e-3)
    num_buckets, num_parameters = len(strategy.describe()["bucket_bytes"]), len(strategy.replica.parameters)
    assert 1 < num_buckets < num_parameters
    assert [len(each) for each in places] == [num_buckets if bucket_view else num_parameters]
