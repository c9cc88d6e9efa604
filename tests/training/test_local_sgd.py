"""Local SGD and DiLoCo: ranks that train alone and meet every few steps, against the same by hand on one process."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.params.choices import read_constant
from tasks.strategies import local_sgd as profile
from tests.tiny import make_config
from tests.training.conftest import parsed, relative_l2
from tests.training.forked_ranks import ForkedRanks, last_words
from tests.training.local_steps import LEARNING_RATE, NUM_STEPS
from training.data.plan import make_micro_batches, make_segment_plan
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.strategies import local_sgd, single
from training.workloads import causal_lm, open_training_rows

DILOCO = {"every_steps": 4, "outer_learning_rate": 0.7, "outer_momentum": 0.9}
PLAIN_SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "max_grad_norm": 1e9}


def run(
    ranks: ForkedRanks, work: Path, model: Path, slices: list[Path], options: Any, **changes: Any
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return what the ranks tell of the steps, and the weights behind them."""
    changes = {"strategy": "local_sgd", "world_size": 2, **changes}
    config = make_config(work, model, slices[:1], options=options, **changes)
    codes = ranks.launch(config, entry="tests.training.local_steps")
    assert codes == [0, 0], last_words(config)
    return json.loads((work / "told.json").read_bytes()), torch.load(work / "weights.pt", weights_only=True)


def train_by_hand(model_dir: Path, slices: list[Path], folder: Path, alone: Ranks) -> dict[str, torch.Tensor]:
    """Return the weights that two replicas on one process come to, by algorithm 1 of DiLoCo with SGD written out."""
    config = parsed(make_config(folder, model_dir, slices[:1]), folder)
    source = open_training_rows(causal_lm, config, config.segments[0])
    plan = make_segment_plan(source, config, config.segments[0])
    replicas = [single.build(causal_lm.load_model(model_dir), causal_lm, config, alone) for _ in range(2)]
    outer = {name: part.detach().double() for name, part in replicas[0].module.named_parameters()}
    momentum = {name: torch.zeros_like(part) for name, part in outer.items()}
    for number in range(1, NUM_STEPS + 1):
        step = plan.step(number)
        for rank, replica in enumerate(replicas):
            parts = make_micro_batches(
                source, step, rank=rank, world_size=2, seq_len=config.seq_len, seed=(1, number)
            )  # fmt: skip
            # A mean over half of the labels, so that both ranks' mean is that of the whole batch.
            half: Any = step.num_targets / 2
            replica.train_step(list(parts), num_targets=half, learning_rate=LEARNING_RATE)
        if number not in (4, NUM_STEPS):
            continue
        mine, others = (dict(replica.module.named_parameters()) for replica in replicas)
        for name, start in outer.items():
            change = start - (mine[name].detach().double() + others[name].detach().double()) / 2
            momentum[name] = 0.9 * momentum[name] + change
            outer[name] = start - 0.7 * (change + 0.9 * momentum[name])
            for each in (mine, others):
                each[name].data.copy_(outer[name])
    return {name: part.detach() for name, part in replicas[0].module.state_dict().items()}


@pytest.fixture(scope="module")
def diloco(
    ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Five steps of two ranks that meet after four, and at the segment's end."""
    return run(ranks, tmp_path_factory.mktemp("diloco"), tiny_model, slices, DILOCO)


def test_ranks_are_apart_between_two_meetings_and_alike_behind_each_and_at_the_end(
    diloco: tuple[dict[str, Any], dict[str, torch.Tensor]],
) -> None:
    told, _ = diloco
    assert [len(set(held)) for held in told["held"]] == [2, 2, 2, 1, 1]


def test_all_weights_are_exchanged_once_in_each_meeting_and_nothing_in_any_other_step(
    diloco: tuple[dict[str, Any], dict[str, torch.Tensor]], tiny_model: Path
) -> None:
    num_bytes = 4 * sum(part.numel() for part in causal_lm.load_model(tiny_model).parameters())
    nothing, all_weights = {"all_reduce": [0, 0]}, {"all_reduce": [1, num_bytes]}
    assert diloco[0]["traffic"] == [nothing, nothing, nothing, all_weights, all_weights]


def test_the_model_between_two_meetings_is_that_of_the_last_one_and_is_what_is_evaluated(
    diloco: tuple[dict[str, Any], dict[str, torch.Tensor]],
) -> None:
    told, _ = diloco
    models = [set(model) for model in told["models"]]
    assert all(len(model) == 1 for model in models), "all ranks say the same"
    assert models[0] == models[1] == models[2]
    assert models[3] == {told["held"][3][0]} != models[2]
    assert told["heldout"][0] == told["heldout"][1] == told["heldout"][2] != told["heldout"][3]


def test_its_weights_are_those_of_the_published_algorithm_by_hand(
    diloco: tuple[dict[str, Any], dict[str, torch.Tensor]],
    tiny_model: Path,
    slices: list[Path],
    tmp_path: Path,
    alone: Ranks,
) -> None:
    assert relative_l2(diloco[1], train_by_hand(tiny_model, slices, tmp_path, alone)) < 2e-6


def test_with_a_meeting_after_every_step_of_sgd_it_is_ddp(
    ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    _, mine = run(ranks, tmp_path / "mine", tiny_model, slices, {"every_steps": 1}, **PLAIN_SGD)
    _, ddp = run(ranks, tmp_path / "ddp", tiny_model, slices, {}, strategy="ddp", **PLAIN_SGD)
    start = causal_lm.load_model(tiny_model).state_dict()
    assert relative_l2(ddp, start) > 1e-4, "the steps have moved the weights"
    assert relative_l2(mine, ddp) < 2e-6


def test_one_rank_and_fp16_are_refused(tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks) -> None:
    model = causal_lm.load_model(tiny_model)
    config = parsed(make_config(tmp_path, tiny_model, slices[:1], strategy="local_sgd"), tmp_path)
    with pytest.raises(ValueError, match="world_size=1 with strategy local_sgd; allowed: 2 or more"):
        local_sgd.build(model, causal_lm, config, alone)
    assert "allowed: 2 or more" in str(profile.explain_unfit({}, world_size=1, unit="token"))
    config = parsed(make_config(tmp_path, tiny_model, slices[:1], precision="fp16"), tmp_path)
    two: Any = type("Two", (), {"world_size": 2})()
    with pytest.raises(UnfitModelError, match="fp16 is not available for the strategy local_sgd"):
        local_sgd.build(model, causal_lm, config, two)


def test_what_is_known_of_it_takes_the_same_defaults() -> None:
    options = read_constant("training/strategies/local_sgd.py", "OPTIONS")
    found = profile.find_other_training({})
    assert (found.how, found.every_steps) == ("exchanges every 8 steps", options["every_steps"])
