"""How chaotic a training is, for the report: how far two right trainings of the same work part."""

import numpy as np

from tasks.process import wording
from tasks.records.facts import Record
from tasks.records.twins import Twins

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


def compute_chaos(twins: Twins | None) -> Chaos | None:
    """Return what the twins say of the training; None without any."""
    if twins is None:
        return None
    return Chaos(
        num_trainings=len(twins.twins),
        num_steps=twins.num_steps,
        largest_differences=twins.widest.tolist(),
        sentence=describe_chaos(twins),
    )


def describe_chaos(twins: Twins) -> str:
    """Return how chaotic the training is, in one sentence."""
    widest = twins.widest
    for apart in _APART:
        if widest[-1] >= apart:
            step = int(np.argmax(widest >= apart)) + 1
            return (
                f"This training is chaotic: two runs of the same work, which differ in how their sums are rounded "
                f"alone, part by {100 * apart:g} % of the loss after {wording.format_plural(step, 'step')}."
            )
    return (
        f"This training is not chaotic as far as was looked: two runs of the same work, which differ in how their sums "
        f"are rounded alone, were at most {wording.format_difference(float(widest[-1]))} of the loss apart in "
        f"{wording.format_plural(twins.num_steps, 'step')}."
    )
