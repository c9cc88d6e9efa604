"""What was found of one update of the ranks, computed a second time from the same state; standard library only.

segment.json has it of each update that was checked while the segment was trained.
"""

from dataclasses import dataclass, field
from typing import Literal

NUMBER_TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-3}
"""Relative difference allowed of the loss.

Over random and pretrained models of 0.1 to 494 million parameters and batches of 94 to 27,712 tokens, right trainers on
a CPU were within 1e-7 (fp32), 9e-4 (bf16) and 9e-5 (fp16, which has three more bits); 16 bit is given ten times that,
fp32 a hundred times, for the kernels of a GPU. Against that stand a mean of the micro-batches' means, the mildest wrong
loss that was tried, with 9e-5 to 6e-3 (which 16 bit cannot tell apart), labels of another position with 0.1 and more,
and a loss logged 8 times too large.
"""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How far one kind of number is off."""

    difference: float
    """L2 norm of the differences / L2 norm of what the update changed, or of the gradient; of one number, relative."""
    noise_floor: float
    """What other orders of the sums, rounding, and the precision of other kernels make of it."""
    tolerance: float
    """The most that is allowed."""
    largest_in: str | None = None
    """The parameter with the largest L2 norm of differences; None if there is none."""


@dataclass(frozen=True, kw_only=True)
class CheckedUpdate:
    """One update."""

    step: int
    """From 1, over the whole run."""
    verdict: Literal["passed", "failed", "not checked"]
    """`not checked`: it could not be kept or replayed, or noise hides what a wrong trainer does. `passed` is also what
    the loss scale skipped."""
    problem: str | None = None
    """Why it did not pass, in plain words."""
    compared: dict[str, Compared] = field(default_factory=dict)
    """What was compared: gradient (as the first moments have it), squares (as the second have it), weights, statistics
    (of batch normalisation), loss, norm (of the gradient before clipping), rows (the loss of the micro-batches without
    dropout, against that of their rows, read and computed one by one)."""
    precision: str | None = None
    """In which both computed."""
    micro_batch_size: int | None = None
    """Samples per forward pass of both."""
    start_problem: str | None = None
    """At step 1: in what it did not begin with the base model; null if in nothing."""
    seconds: float = 0.0
    """Seconds that computing it a second time took."""

    @property
    def is_skipped(self) -> bool:
        """Whether the loss scale of fp16 skipped it: nothing changed, so that there was no update to compare."""
        return self.verdict == "passed" and "gradient" not in self.compared
