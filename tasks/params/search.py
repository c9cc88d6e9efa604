"""The section `search` of params.yaml: what the trials of `make search` differ in, and when which of them go on.

What a trial is trained with is a function of the seed and its number alone, so that nothing depends on which trial ends
first, and one more trial leaves the others what they were.
"""

import hashlib
import itertools
import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from tasks.params.section import Finite, Section

_DIGITS = 3
"""Of a drawn number, so that it stands in params.yaml as it was trained with."""


class Configuration(Section):
    """What a trial has of its own, as the section `train` means it."""

    learning_rate: float
    """Peak."""
    batch_size: int
    """Samples per optimizer step."""
    weight_decay: float
    """Of all but biases and norms."""
    warmup_steps: int
    """Optimizer steps."""

    def __str__(self) -> str:
        return (
            f"learning rate {self.learning_rate:g}, batch {self.batch_size}, weight decay {self.weight_decay:g}, "
            f"{self.warmup_steps} steps of warm-up"
        )


class SearchParams(Section):
    """A search by successive halving: all trials for few epochs, the best of them for more."""

    learning_rate: list[Finite] = Field(default=[5e-6, 5e-5], min_length=2, max_length=2)
    """Least and largest peak learning rate; the logarithm is drawn evenly between them."""
    batch_size: list[Annotated[int, Field(ge=1, le=1_000_000)]] = Field(default=[1, 2, 4], min_length=1, max_length=100)
    """Samples per optimizer step, one of which is drawn: `train.global_batch_size` of a trial."""
    weight_decay: list[Finite] = Field(default=[0.0, 0.3], min_length=2, max_length=2)
    """Least and largest weight decay, drawn evenly."""
    warmup_steps: list[Annotated[int, Field(ge=0, le=1_000_000)]] = Field(
        default=[0, 100, 200], min_length=1, max_length=100
    )
    """Optimizer steps of warm-up, one of which is drawn."""
    trials: int = Field(default=6, ge=1, le=1000)
    """Configurations to begin with."""
    at_once: int = Field(default=2, ge=1, le=64)
    """Trials that train at the same time."""
    rungs: list[Annotated[int, Field(ge=1, le=10_000)]] = Field(default=[1, 3, 9], min_length=1, max_length=20)
    """Epochs after which trials are compared, rising; the schedule of every trial runs over the last of them."""
    eta: int = Field(default=3, ge=2, le=1000)
    """One in so many goes on to the next rung; at least one does."""
    repeats: int = Field(default=2, ge=0, le=20)
    """Other seeds that the best configuration and the runner-up are trained with, to see how much of a lead is luck."""
    seed: int = Field(default=42, ge=0, lt=2**31)
    """What the configurations follow from; the trainings have `train.seed`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, least in (("learning_rate", 1e-12), ("weight_decay", 0.0)):
            low, high = getattr(self, name)
            if not least <= low <= high <= 10:
                raise ValueError(f"{name}: got [{low:g}, {high:g}]; allowed: least and largest, from {least:g} to 10")
        if any(later <= earlier for earlier, later in itertools.pairwise(self.rungs)):
            raise ValueError(f"rungs: got {self.rungs}; allowed: rising numbers of epochs, such as [1, 3, 9]")
        return self

    def draw(self, index: int) -> Configuration:
        """Return what the trial with this number, from 0, is trained with."""
        low, high = map(math.log, self.learning_rate)
        least, most = self.weight_decay
        return Configuration(
            learning_rate=_round(math.exp(low + (high - low) * self._draw_share(index, "learning_rate"))),
            batch_size=self.batch_size[int(len(self.batch_size) * self._draw_share(index, "batch_size"))],
            weight_decay=_round(least + (most - least) * self._draw_share(index, "weight_decay")),
            warmup_steps=self.warmup_steps[int(len(self.warmup_steps) * self._draw_share(index, "warmup_steps"))],
        )

    def _draw_share(self, index: int, name: str) -> float:
        """Return a number from 0 to below 1: each key has its own, whatever becomes of the others."""
        digest = hashlib.sha256(f"{self.seed} {index} {name}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
