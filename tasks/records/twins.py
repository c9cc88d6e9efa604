"""data/measurements/twins.json: trainings of the same work that differ in how their sums are rounded alone."""

import itertools
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tasks.records.facts import Record
from tasks.records.stage_file import StageFile


class Twin(Record):
    """One of the trainings."""

    order: str
    """How it added gradients up, in plain words."""
    losses: list[float]
    """Mean loss of each step, from step 1."""


class Twins(StageFile):
    """Trainings of the baseline's first steps by one process, all with the same work and each with its own rounding."""

    NAME: ClassVar[str] = "twins.json"

    twins: list[Twin] = Field(min_length=2)
    """At first in the baseline's order; all have as many steps."""
    seconds: float
    """Seconds that they took."""
    made_of: dict[str, Any] = Field(default_factory=dict)
    """What decided them: NUMERICS_VERSION, the digests of base model, machine and rows, and `train.KEY`."""

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
