"""What a cell loses against the ideal, part by part; part of data/measurements/speed.json.

Seconds are of one optimizer step, the slowest rank's.
"""

from tasks.records.estimate import Estimate
from tasks.records.facts import Record


class LostPart(Record):
    """One share of the time that a cell loses against the ideal."""

    name: str
    """data wait, host-to-device copy, contention, DDP overhead, exposed communication, straggler, optimizer, fixed, or
    waiting for other stages."""
    seconds: Estimate
    """Seconds per step lost to it."""
    how: str
    """The counterfactual that it was measured by, in plain words."""


class Waterfall(Record):
    """From the ideal step of a cell to its measured one."""

    cell: str
    """Name of the cell."""
    ideal_seconds: float | None
    """The baseline's seconds per step / how many times more ranks the cell has (strong scaling); null if withheld."""
    measured_seconds: float
    """Seconds per step of the cell."""
    parts: list[LostPart]
    """What the difference is made of, in the order of the chain."""
    unexplained_seconds: float | None
    """measured - ideal - all parts; negative if the parts are more than was lost; null if withheld."""
    lost_efficiency: float | None
    """1 - parallel efficiency; null if withheld."""
    unexplained_efficiency: float | None
    """unexplained_seconds / measured_seconds; null if withheld."""
    ddp_exposed_communication_seconds: float | None
    """What DDP's own timers say of exposed communication, as a cross-check; null where they say nothing."""
    verdict: str | None
    """The largest part and its share of the step, in plain words; null if withheld."""
    is_data_bound: bool
    """Whether it or the baseline waits for data in more than 5 % of its step, or it loses as much to that beyond
    doubt."""
