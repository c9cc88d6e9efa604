"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): small factors are trained beside weights that stay as they are.

The library peft puts them into the model, whose other weights may wait in 4 bits (four_bit.py). What is checkpointed
and compared is the model with its factors merged: an ordinary one, under its ordinary names. The factors themselves are
a part of the state, from which training goes on.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from training.config import TrainingConfig
from training.model.attention_kernels import DTYPES
from training.model.four_bit import FourBitLinear, hush, round_weight
from training.model.weights import collect_weights
from training.process.failure import UnfitModelError

PACKAGE = "peft"
"""What has to be installed; `make params` looks for it."""
ALL_LINEAR = "all-linear"
"""As targets: every linear layer but the head."""
FIRST, SECOND = "lora_A.default.weight", "lora_B.default.weight"
"""What follows a layer's name in those of its factors: (rank, inputs), then (outputs, rank)."""
_BASE = ".base_layer."
"""What peft puts between a layer's name and those of what it had before."""


def list_targets(model: nn.Module, targets: str | Iterable[str]) -> dict[str, nn.Linear]:
    """Return name -> linear layer of those that get factors: the last part of a name is a target, or all are.

    Raises UnfitModelError for a target that is no linear layer of the model, or its head, and for a model without one.
    """
    whole: Any = model
    head = whole.get_output_embeddings() if hasattr(whole, "get_output_embeddings") else None
    # Its own subclasses alone: another may multiply otherwise.
    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear) and part is not head}
    known = {name.rpartition(".")[2] for name in linear}
    wanted = known if targets == ALL_LINEAR else set(targets)
    if unknown := sorted(wanted - known):
        raise UnfitModelError(
            f"train.adapter.targets: got {', '.join(unknown)}, of which {type(model).__name__} has no linear layer "
            f"below its head; allowed: {', '.join(sorted(known)) or 'none, it has no such layer'}"
        )
    if not linear:
        # Such as GPT-2, whose layers are transformers' Conv1D. peft would say that it was given no target_modules.
        raise UnfitModelError(
            f"train.adapter.targets: got {ALL_LINEAR}, and {type(model).__name__} has no linear layer below its head; "
            "allowed: another model, or train.adapter: null, which trains all weights"
        )
    return {name: part for name, part in linear.items() if name.rpartition(".")[2] in wanted}


def round_base(model: nn.Module, base: str | None, *, device: torch.device) -> None:
    """Give an ordinary model the weights that an adapter's base has, rounded on that device; null: it has its own."""
    for layer in list_targets(model, ALL_LINEAR).values() if base else ():
        layer.weight.data = round_weight(layer.weight, device=device)


def draw_first_factor(name: str, *, rank: int, num_inputs: int, seed: int) -> Tensor:
    """Return where a layer's first factor begins: (rank, num_inputs) float32, by seed and name of the layer alone.

    Uniform between +-1/sqrt(num_inputs), as a linear layer's weights begin. The second begins at 0.
    """
    number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "big")
    generator = torch.Generator().manual_seed(number)
    bound = num_inputs**-0.5
    return torch.empty(rank, num_inputs).uniform_(-bound, bound, generator=generator)


class Adapter:
    """The factors in a model, and what the model is with them merged."""

    def __init__(self, model: nn.Module, layers: Iterable[str], *, scale: float) -> None:
        self._model = model
        self._layers = sorted(layers)
        self._scale = scale
        self._rounded = {
            make_plain(f"{name}.weight"): part
            for name, part in model.named_modules()
            if isinstance(part, FourBitLinear)
        }

    def factors(self) -> dict[str, Tensor]:
        """Return what is trained, by name, where it is."""
        return {name: part.detach() for name, part in self._model.named_parameters() if _is_factor(name)}

    def load_factors(self, factors: Mapping[str, Tensor]) -> None:
        """Have these values in the factors, in the memory where they are."""
        with torch.no_grad():
            for name, part in self.factors().items():
                part.copy_(factors[name])

    def merge(self, named: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the model without its factors, by plain name and sorted by it, each layer's merged.

        On the CPU and through fp64, where rounding leaves no room for another order of sums. A weight to which nothing
        is added keeps its bits: -0.0, of which checkpoints in 16 bit have some, plus 0 were 0.0.
        """
        plain = {make_plain(name): tensor for name, tensor in named.items() if not _is_factor(name)}
        layers = {f"{name}.weight": name for name in self._layers}
        for name, tensor in sorted(plain.items(), key=lambda item: item[0]):
            weight = self._rounded[name].widen().cpu() if name in self._rounded else tensor
            if (layer := layers.get(name)) is None:
                yield name, weight
                continue
            first, second = (factors[f"{layer}.{end}"].detach().cpu().double() for end in (FIRST, SECOND))
            weight = weight.detach().cpu()
            added = self._scale * (second @ first)
            yield name, torch.where(added == 0, weight, (weight.double() + added).to(weight.dtype))

    def merge_weights(self, factors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return the state dict of the ordinary model on the CPU; `factors`: with others than it has."""
        return dict(self.merge(collect_weights(self._model), self.factors() if factors is None else factors))

    def outline_weights(self) -> dict[str, Tensor]:
        """Return name -> a tensor of the same shape and type as in that state dict."""
        plain = {make_plain(name): part for name, part in self._model.state_dict().items() if not _is_factor(name)}
        wide = {
            name: torch.empty(part.out_features, part.in_features, device="meta")
            for name, part in self._rounded.items()
        }
        return {**plain, **wide}

    @property
    def num_bytes_saved(self) -> int:
        """How many bytes the weights take less in memory than in that state dict."""
        return sum(part.num_bytes_saved for part in self._rounded.values())


def adapt(model: nn.Module, config: TrainingConfig, *, device: torch.device) -> Adapter | None:
    """Put the factors that the config asks for into the model, which then trains nothing else; None: it asks for none.

    What is rounded is on the device then. Raises UnfitModelError where a package is missing, or the model has no such
    layers.
    """
    if not config.adapter:
        return None
    rank, alpha = int(config.adapter["rank"]), float(config.adapter["alpha"])
    layers = list_targets(model, config.adapter["targets"])
    hush()
    try:
        # Here, not above: seconds, and no part of the ordinary set-up.
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UnfitModelError(f"train.adapter: lora needs peft ({error}); install it with: make extras") from None
    lora = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=list(layers), lora_dropout=0.0, bias="none", init_lora_weights=True
    )
    for name, layer in list_targets(model, ALL_LINEAR).items() if config.adapter["base"] else ():
        model.set_submodule(name, FourBitLinear(layer, device=device, dtype=DTYPES[config.precision]))
    inject_adapter_in_model(lora, model)
    adapter = Adapter(model, layers, scale=alpha / rank)
    inputs = {name: part.in_features for name, part in layers.items()}
    with torch.no_grad():
        for name, part in model.named_parameters():
            part.requires_grad_(_is_factor(name))
            whose = name.removesuffix(f".{FIRST}")
            if whose in inputs and whose != name:
                part.copy_(draw_first_factor(whose, rank=rank, num_inputs=inputs[whose], seed=config.seed))
            elif name.endswith(f".{SECOND}"):
                part.zero_()
    return adapter


def make_plain(name: str) -> str:
    """Return the name that a parameter or buffer has in the ordinary model."""
    return name.replace(_BASE, ".")


def _is_factor(name: str) -> bool:
    return name.endswith((f".{FIRST}", f".{SECOND}"))
