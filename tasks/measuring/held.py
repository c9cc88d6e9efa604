"""What a rank holds of its memory before anything is computed: weights, moments and gradients, in bytes."""

from dataclasses import dataclass
from pathlib import Path

from tasks.machine.host_checks import BYTES_PER_PARAMETER
from tasks.params.adapter import LoraParams
from tasks.process.failure import ConfigurationError

_BYTES_OF_WEIGHT = 4
_BYTES_OF_GRADIENT = 4
_BYTES_ROUNDED = 4 / 8 + 4 / 64
"""A level of 4 bits, and a number of 4 bytes for every 64 of them."""


@dataclass(frozen=True, kw_only=True)
class HeldBytes:
    """What the variants of a step share on a rank (training/probing/shared_state.py), and what each has of its own."""

    shared: int
    """Weights and moments."""
    of_variant: int
    """A gradient, which lies in DDP's buckets where it has some."""

    @property
    def num_parameters(self) -> int:
        """As many parameters, trained with their moments, would take what one variant does."""
        return -(-(self.shared + self.of_variant) // BYTES_PER_PARAMETER)


def count_all_trained(num_parameters: int) -> HeldBytes:
    """Return what a model holds all of whose weights are trained."""
    gradient = _BYTES_OF_GRADIENT * num_parameters
    return HeldBytes(shared=BYTES_PER_PARAMETER * num_parameters - gradient, of_variant=gradient)


def count_beside_adapter(
    adapter: LoraParams, base_model: Path, *, workload: str, num_parameters: int, device: str
) -> HeldBytes:
    """Return what a model holds of which an adapter's factors are trained.

    On a GPU what is rounded waits there in 4 bits: every linear layer's weight but the head's. Embedding, head and all
    else stay in fp32, and so do all on a CPU, where they are read before they are rounded. Raises ConfigurationError
    where the model has no such layers.
    """
    # Here, not above: seconds.
    import torch

    from tasks.equivalence.reference.adapter import count_factors
    from training.model.adapter import ALL_LINEAR, list_targets
    from training.process.failure import UnfitModelError
    from training.workloads import find_workload

    with torch.device("meta"):
        model = find_workload(workload).outline_model(base_model)
    try:
        num_factors = count_factors(model, adapter.model_dump())
        rounded = list_targets(model, ALL_LINEAR).values() if adapter.base and device == "cuda" else ()
    except UnfitModelError as error:
        raise ConfigurationError(str(error)) from None
    num_rounded = sum(layer.weight.numel() for layer in rounded)
    weights = _BYTES_OF_WEIGHT * (num_parameters - num_rounded) + round(_BYTES_ROUNDED * num_rounded)
    trained = count_all_trained(num_factors)
    return HeldBytes(shared=weights + trained.shared, of_variant=trained.of_variant)
