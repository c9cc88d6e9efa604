"""How long a strategy's ranks exchange beside the last backward of a step: one file per strategy, for the prediction.

A strategy without a file here is measured as any other; its profile then explains for what there is no prediction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from training.registry import import_file

Draws = np.ndarray
"""(num_draws,) float64: one figure per draw."""


class Ready(Protocol):
    """Bytes that can be exchanged from one moment of the backward on."""

    @property
    def num_bytes(self) -> float:
        """What the link carries."""
        ...

    @property
    def ready(self) -> float:
        """Share of the backward after which they are ready, 0..1."""
        ...


@dataclass(frozen=True, kw_only=True)
class LastBackward:
    """The backward beside which a step's gradients are exchanged, on any number of ranks."""

    seconds: Draws
    """Without an exchange."""
    buckets: Sequence[Ready]
    """What is exchanged together, in the order of the exchange."""
    wrapper_seconds: Draws
    """By how much the wrapper delays it for each bucket."""
    slowdown: Draws
    """Seconds of computing while an exchange is in flight / seconds without."""
    link_seconds: Callable[[float], Draws]
    """Number of bytes -> seconds of an all-reduce of them."""


class Communication(Protocol):
    """What a file of this folder offers."""

    def compute_exchange_seconds(self, last: LastBackward) -> Draws:
        """Return the seconds from the beginning of the backward until it is over and all is exchanged."""
        ...


def find_communication(strategy: str) -> Communication:
    """Return the model of a strategy whose profile explains no prediction away."""
    found: Communication = import_file("tasks.strategies.communication", strategy)
    return found
