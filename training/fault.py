"""A fault that is planned, for tests of what a run survives: FAULT="rank=0,step=7,kind=sigkill" in the environment."""

import os
import re
import signal
from dataclasses import dataclass

from training.failure import TrainingError


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A signal that this rank sends itself."""

    step: int
    """The optimizer step, counted from 1 over the whole run, after whose update it comes: before anything is saved."""
    number: signal.Signals
    """Which signal."""

    def strike(self, step: int) -> None:
        """Send it if `step` is the one."""
        if step == self.step:
            os.kill(os.getpid(), self.number)


def planned_fault(rank: int) -> Fault | None:
    """Return what the environment plans for this rank, if anything.

    `kind` is the name of a signal. Raises TrainingError for anything but the form above.
    """
    text = os.environ.get("FAULT")
    if not text:
        return None
    match = re.fullmatch(r"rank=(\d+),step=(\d+),kind=(\w+)", text)
    kinds = {number.name.lower(): number for number in signal.Signals}
    if match is None or match[3] not in kinds:
        raise TrainingError(f"FAULT={text!r}; allowed: rank=0,step=7,kind=sigkill, the kind being any signal's name")
    return Fault(step=int(match[2]), number=kinds[match[3]]) if int(match[1]) == rank else None
