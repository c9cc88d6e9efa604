"""data/measurements/twins.json: how far trainings part that differ in how their sums are rounded alone."""

import itertools
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tasks.reporting import wording
from tasks.reporting.facts import Record

_APART = (1e-1, 1e-2, 1e-3)
"""Of the loss; what the report names the first step of, the largest that was reached."""


class Chaos(Record):
    """How far two right trainings of this work part."""

    num_trainings: int
    """Trainings of the same steps by one process."""
    num_steps: int
    """Steps that each of them made."""
    largest_differences: list[float]
    """The largest relative difference of the loss between two of them until each step."""
    sentence: str
    """The same in plain words."""


class Twin(Record):
    """One of the trainings."""

    order: str
    """How it added gradients up, in plain words."""
    losses: list[float]
    """Mean loss of each step, from step 1."""


class Twins(Record):
    """Trainings of the baseline's first steps by one process, all with the same work and each with its own rounding."""

    twins: list[Twin] = Field(min_length=2)
    """At first in the baseline's order; all have as many steps."""
    seconds: float
    """Seconds that they took."""

    @property
    def num_steps(self) -> int:
        """Steps that were trained."""
        return len(self.twins[0].losses)

    @cached_property
    def differences(self) -> NDArray[np.float64]:
        """(pairs, steps): relative difference of the loss of every two of them."""
        losses = np.array([twin.losses for twin in self.twins])
        pairs = itertools.combinations(losses, 2)
        return np.array([2 * np.abs(one - other) / np.maximum(np.abs(one + other), 1e-30) for one, other in pairs])

    @property
    def widest(self) -> NDArray[np.float64]:
        """(steps,): the largest of these differences until each step."""
        found: NDArray[np.float64] = np.maximum.accumulate(self.differences.max(axis=0))
        return found


def chaos_of(twins: Twins | None) -> Chaos | None:
    """Return what the twins say of the training; None without any."""
    if twins is None:
        return None
    return Chaos(
        num_trainings=len(twins.twins),
        num_steps=twins.num_steps,
        largest_differences=twins.widest.tolist(),
        sentence=in_words(twins),
    )


def in_words(twins: Twins) -> str:
    """Return how chaotic the training is, in one sentence."""
    widest = twins.widest
    for apart in _APART:
        if widest[-1] >= apart:
            step = int(np.argmax(widest >= apart)) + 1
            return (
                f"This training is chaotic: two runs of the same work, which differ in how their sums are rounded "
                f"alone, part by {100 * apart:g} % of the loss after {wording.counted(step, 'step')}."
            )
    return (
        f"This training is not chaotic as far as was looked: two runs of the same work, which differ in how their sums "
        f"are rounded alone, were at most {wording.difference(float(widest[-1]))} of the loss apart in "
        f"{wording.counted(twins.num_steps, 'step')}."
    )
