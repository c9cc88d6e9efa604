"""Does a model draw random numbers in its forward pass, as functional dropout does? By torch's generators around it."""

from typing import Any

import torch

from ddp_audit.observer.torch_private import get_uncompiled

_TRAINED_BY_A_STEP_OF_ITS_OWN = "LightningModule"
"""What is wrapped of such a model is its whole training step; alone, its forward pass is called or none."""


def read_random_states(device: torch.device) -> list[torch.Tensor]:
    """Return the states of the generators that a model on this device draws from; nothing here waits for the device."""
    states = [torch.default_generator.get_state()]
    # While a graph is captured nobody may ask.
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        states.append(torch.cuda.default_generators[device.index or 0].get_state())
    return states


def has_drawn_since(before: list[torch.Tensor], device: torch.device) -> bool:
    """Return whether a model on this device has drawn random numbers since these states were read."""
    return not all(map(torch.equal, before, read_random_states(device)))


def name_computed(module: Any, wrapper: Any) -> str:
    """Return the kind of module whose forward pass is a call of `module`, whatever it is wrapped in; empty if unknown.

    Only passes of one kind can be compared: around another module there may be the loss, and what is drawn for it.
    """
    plain = get_uncompiled(module)
    if plain is wrapper:
        plain = getattr(plain, "module", plain)
    kinds = [kind.__name__ for kind in type(get_uncompiled(plain)).__mro__]
    return "" if _TRAINED_BY_A_STEP_OF_ITS_OWN in kinds else kinds[0]
