"""The running statistics of batch normalisation as the one process keeps them: read, and advanced apart from the model.

A forward of a reference's layer leaves `seen`, its mean and unbiased variance, and changes nothing: the one process
runs a micro-batch as often as it likes.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

Forward = list[tuple[Tensor, Tensor]]
"""Of each layer: mean and unbiased variance of the rows, (num_channels,)."""
_KINDS = ("running_mean", "running_var")


class RunningStatistics:
    """Those of a model's layers; nothing where it has none."""

    def __init__(self, model: Any) -> None:
        self._layers = {name: part for name, part in model.named_modules() if hasattr(part, _KINDS[0])}

    def __bool__(self) -> bool:
        """Return whether the model has any."""
        return bool(self._layers)

    def get(self) -> dict[str, Tensor]:
        """Return them by name, where they are."""
        return {f"{name}.{kind}": getattr(part, kind) for name, part in self._layers.items() for kind in _KINDS}

    def multiply_out(self, *, is_wanted: bool) -> None:
        """Have the layers' gradient rounded otherwise, or as at first."""
        for layer in self._layers.values():
            layer.multiplies_out = is_wanted

    def look(self) -> Forward:
        """Return what the last forward was normalised by."""
        return [layer.seen for layer in self._layers.values()]

    def advance(self, forwards: Iterable[Forward]) -> dict[str, Tensor]:
        """Return, on the CPU, what these forwards, in their order, make of them; they stay as they are."""
        found = {name: part.to("cpu", copy=True) for name, part in self.get().items()}
        for forward in forwards:
            for (name, layer), new in zip(self._layers.items(), forward, strict=True):
                for kind, value in zip(_KINDS, new, strict=True):
                    found[f"{name}.{kind}"].mul_(1 - layer.momentum).add_(value.cpu(), alpha=layer.momentum)
        return found
