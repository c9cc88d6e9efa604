"""The layers of a model, as its own class names them; each may keep less for the backward."""

from typing import Any

from torch import nn

from training.process.failure import UnfitModelError


def list_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that the model's own class names as those that are not to be split; none if it names none."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [part for part in model.modules() if type(part).__name__ in names]


def recompute_layers(model: nn.Module) -> None:
    """Have each layer keep only what goes into it, and run again in the backward (Chen et al. 2016): the same bits.

    Random numbers are drawn again as they were. Raises UnfitModelError for a model that cannot.
    """
    whole: Any = model
    if not getattr(model, "supports_gradient_checkpointing", False):
        name = type(model).__name__
        raise UnfitModelError(f"activation_checkpointing: layers, which {name} is not made for; allowed: none")
    whole.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
