"""Where a comparison's runs are shown: one file per tracker, found by its name in params.yaml; each offers Tracker."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from tasks.services.tracked import Figures, Point, Report, TrackedComparison
from training.registry import import_file


class TrackedRun(Protocol):
    """One cell's run. Every method may raise whatever a tracker can get wrong."""

    def set_status(self, status: str) -> None:
        """Set RUNNING, FINISHED, FAILED or KILLED, where the tracker has such a thing."""

    def send(self, points: Iterable[Point]) -> int:
        """Send or take the points that the run lacks; return the number of values sent."""


class Runs(Protocol):
    """The runs of one comparison. Every method may raise whatever a tracker can get wrong."""

    def open_cell(self, cell: str, facts: Mapping[str, str]) -> TrackedRun:
        """Return the cell's run below the comparison's, made if need be, with the facts as parameters."""

    def withdraw(self, figures: Figures) -> None:
        """Have no run show a final figure that is not among `figures`: a withheld speedup must not stay visible."""

    def send_report(self, report: Report) -> int:
        """Complete the runs that are open with the report; return the number of values sent, 0 where all is there."""


class Tracker(Protocol):
    """What a file of this folder offers."""

    PACKAGE: str
    """What has to be installed; `make extras` installs what the set-up does not. A literal: the check of params.yaml
    reads it without importing the file."""

    def choose_uri(self, asked: str | None) -> str:
        """Return where runs are kept, given what params.yaml says of it; may hold credentials, so never printed."""

    def open_runs(self, comparison: TrackedComparison, *, uri: str) -> Runs:
        """Return the comparison's runs there; raises whatever a tracker can get wrong."""


def load_tracker(name: str) -> Tracker:
    """Return the file of this folder with that name."""
    tracker: Tracker = import_file("tasks.services.trackers", name)
    return tracker
