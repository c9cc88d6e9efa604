"""Layers that keep only what goes into them: the same training, with less in memory."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import are_bitwise_equal, facts_of, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.model.layers import recompute_layers
from training.process.failure import UnfitModelError
from training.workloads import causal_lm

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [("single", {}), ("ddp", {}), ("zero1", {}), ("fsdp2", {}), ("ddp", {"precision": "bf16", "packing": True})],
    ids=["single", "ddp", "zero1", "fsdp2", "ddp packed in bf16"],
)
def test_the_weights_are_the_same_to_the_bit(
    strategy: str, changes: dict[str, Any], ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    size = 1 if strategy == "single" else 2
    model = make_tiny_model(tmp_path / "model")
    runs = [
        ranks.train(
            make_config(
                tmp_path / which, model, slices[:1], strategy=strategy, world_size=size, cell=f"{size}proc",
                activation_checkpointing=which, **changes,
            )
        )
        for which in ("none", "layers")
    ]  # fmt: skip
    assert are_bitwise_equal(*(weights_at_end(config) for config in runs))
    assert facts_of(runs[0], 0)["loss"] == facts_of(runs[1], 0)["loss"]


def test_less_is_kept_for_the_backward_and_each_layer_runs_twice(tmp_path: Path) -> None:
    kept, runs = [], []
    for is_recomputed in (False, True):
        model = causal_lm.load_model(make_tiny_model(tmp_path / f"{is_recomputed}", num_layers=4)).train()
        if is_recomputed:
            recompute_layers(model)
        sizes: dict[int, int] = {}
        calls: list[int] = []
        for layer in model.model.layers:
            layer.self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))

        def keep(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(input_ids=torch.arange(64).reshape(2, 32) % 50).logits.square().mean()
        kept.append(sum(sizes.values()))
        loss.backward()
        runs.append(len(calls))
    assert kept[1] < kept[0] / 2
    assert runs == [4, 8]


def test_a_model_that_has_no_such_layers_is_refused_in_one_line() -> None:
    with pytest.raises(UnfitModelError, match="activation_checkpointing: layers, which Linear is not made for"):
        recompute_layers(torch.nn.Linear(1, 1))
