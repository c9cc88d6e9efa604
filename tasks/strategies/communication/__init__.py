"""How a step of a strategy goes on any number of ranks, exchanges included: one file per strategy, for the prediction.

A strategy without a file here is measured as any other; its profile then explains for what there is no prediction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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


@dataclass(frozen=True, kw_only=True)
class SpreadStep:
    """A step on some number of ranks: what there is to compute, and what its exchanges take."""

    world_size: int
    """Number of ranks, at least 2."""
    works: tuple[float, ...]
    """Work of each micro-batch of the busiest share, the last one first; 1 is that of the mean micro-batch."""
    forward: Draws
    """Seconds of the mean micro-batch on one rank that has the whole model, what others take from it included."""
    backward: Draws
    """The same."""
    optimizer: Draws
    """Seconds of the whole update on one rank, likewise."""
    buckets: Sequence[Ready]
    """How gradients are all-reduced, where they are, in the order of the exchange."""
    wrapper_seconds: Draws
    """By how much the wrapper delays a backward for each bucket."""
    slowdown: Draws
    """Seconds of computing while an exchange is in flight / seconds without."""
    overlaps: bool
    """Whether the device goes on computing while weights are gathered: a GPU does, torch's gloo has it wait."""
    link_seconds: Callable[[str, float, int], Draws]
    """Kind of exchange, bytes of the whole tensor, number of ranks -> seconds of one; 0 on one rank."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the strategy."""
    exchange: Mapping[str, Any] = field(default_factory=dict)
    """How the exchange is laid out, as the ranks said where it was measured (`describe`)."""

    @property
    def earlier(self) -> Draws:
        """Seconds of all micro-batches but the last."""
        return sum(self.works[1:]) * (self.forward + self.backward)

    @property
    def last(self) -> LastBackward:
        """The last backward, beside which gradients are all-reduced."""
        return LastBackward(
            seconds=self.works[0] * self.backward,
            buckets=self.buckets,
            wrapper_seconds=self.wrapper_seconds,
            slowdown=self.slowdown,
            link_seconds=lambda num_bytes: self.link_seconds("all_reduce", num_bytes, self.world_size),
        )


class Communication(Protocol):
    """What a file of this folder offers."""

    KINDS: tuple[str, ...]
    """Of the exchanges whose seconds it asks for."""
    ASSUMPTIONS: tuple[str, ...]
    """What it takes for granted, in whole sentences."""

    def explain_unknown(
        self, options: Mapping[str, Any], exchange: Mapping[str, Any], *, world_size: int
    ) -> str | None:
        """Return why nothing can be said of so many ranks, a whole sentence; None where something can."""
        ...

    def compute_step_seconds(self, step: SpreadStep) -> Draws:
        """Return the seconds of forward and backward passes, update and exchanges."""
        ...


def find_communication(strategy: str) -> Communication:
    """Return the model of a strategy whose profile explains no prediction away."""
    found: Communication = import_file("tasks.strategies.communication", strategy)
    return found


def explain_uneven(options: Mapping[str, Any], *, world_size: int) -> str | None:
    """Return that the ranks cannot be shared out over the replicas, or that each would be one rank; None if not so."""
    replicas = int(options.get("replicas", 1))
    if replicas > 1 and (world_size % replicas or world_size == replicas):
        return f"Of {world_size} ranks nothing is predicted: with {replicas} replicas it has to be a multiple of them."
    return None
