"""Low-rank factors beside a reference's linear layers, as one process trains them: by hooks and without peft."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.config import TrainingConfig
from training.model.adapter import FIRST, SECOND, draw_first_factor, list_targets, round_base


def attach_factors(model: Any, config: TrainingConfig) -> dict[str, nn.Parameter]:
    """Have the model's layers add what its factors make of their inputs; return the factors, by name, and nothing else.

    Their weights are rounded where the base's are. Where the config asks for no adapter: all parameters of the model
    that are trained.
    """
    if not config.adapter:
        return {name: part for name, part in model.named_parameters() if part.requires_grad}
    model.requires_grad_(False)
    round_base(model, config.adapter["base"], device=torch.device(config.device))
    rank, scale = config.adapter["rank"], config.adapter["alpha"] / config.adapter["rank"]
    parameters: dict[str, nn.Parameter] = {}
    for name, layer in list_targets(model, config.adapter["targets"]).items():
        begin = draw_first_factor(name, rank=rank, num_inputs=layer.in_features, seed=config.seed)
        first = nn.Parameter(begin.to(config.device))
        second = nn.Parameter(torch.zeros(layer.out_features, rank, device=config.device))
        layer.register_forward_hook(partial(_add_product, first=first, second=second, scale=scale))
        parameters |= {f"{name}.{FIRST}": first, f"{name}.{SECOND}": second}
    return parameters


def _add_product(
    layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, *, first: Tensor, second: Tensor, scale: float
) -> Tensor:
    return output + F.linear(F.linear(inputs[0], first), second) * scale


def count_factors(model: nn.Module, adapter: Mapping[str, Any]) -> int:
    """Return how many numbers are trained: rank x (inputs + outputs) of every layer that gets factors."""
    layers = list_targets(model, adapter["targets"]).values()
    return sum(int(adapter["rank"]) * (part.in_features + part.out_features) for part in layers)


def find_changed_base(
    weights: Mapping[str, Tensor], factors: Mapping[str, Tensor], base: Mapping[str, Tensor], config: TrainingConfig
) -> list[str]:
    """Return the merged weights that are not the base model's with the factors' product added, by name."""
    assert config.adapter is not None, "nothing is merged where all weights are trained"
    scale, changed = config.adapter["alpha"] / config.adapter["rank"], list[str]()
    for name, expected in base.items():
        layer = name.removesuffix(".weight")
        if f"{layer}.{FIRST}" in factors:
            product = factors[f"{layer}.{SECOND}"].double() @ factors[f"{layer}.{FIRST}"].double()
            expected = (expected.cpu().double() + scale * product).float()
        if name not in weights or not torch.allclose(weights[name], expected.cpu(), rtol=1e-6, atol=1e-7):
            changed.append(name)
    return changed
