"""What is tried: one fault, many times, and how each time ended."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fault and what became of the run."""

    problem: str = ""
    """What was not as it has to be; empty if the run survived."""
    seconds_lost: float | None = None
    """From the fault until the run stood again where it was; None where nothing was running."""
    restart_seconds: float | None = None
    """Part of it until the next launch had done its first optimizer step."""

    @property
    def survived(self) -> bool:
        """Whether all was as it has to be."""
        return not self.problem


@dataclass(frozen=True, kw_only=True)
class Part:
    """One row of the table; a new one is a new entry in tests/chaos/parts.py."""

    key: str
    """Its name on the command line."""
    fault: str
    """What is done to the run, in the table."""
    survives: str
    """What has to be so afterwards, in the table."""
    trials: Callable[[Path], Iterator[Trial]]
    """Given an empty folder; yields each trial as it ends."""
    num_trials: int | None
    """How many it yields; None: as many as there are points to try."""


def failure_rate_bound(trials: Sequence[Trial]) -> float | None:
    """Return the rate of failures that these trials bound with 95 % confidence; None unless all survived.

    With n trials and no failure it is 1 - 0.05^(1/n).
    """
    if not trials or not all(trial.survived for trial in trials):
        return None
    return 1 - 0.05 ** (1 / len(trials))


def median_and_worst(values: Sequence[float | None]) -> str:
    """Return `median (worst)` in seconds of those that are known, or a dash."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f} ({max(known):.1f})" if known else "-"
