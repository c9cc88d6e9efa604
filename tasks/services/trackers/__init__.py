"""Where a comparison's runs are shown: one file per tracker, found by its name in params.yaml; each offers Tracker."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tasks.services.tracked import Point, Rows, Tags, TrackedComparison
from training.registry import import_file

if TYPE_CHECKING:  # a stage that serves nothing need not wait for its import
    from starlette.types import ASGIApp


class TrackedRun(Protocol):
    """One cell's run. Every method may raise whatever a tracker can get wrong."""

    def set_status(self, status: str) -> None:
        """Set RUNNING, FINISHED, FAILED or KILLED."""

    def send_steps(self, points: Iterable[Point]) -> int:
        """Send the steps that the run lacks; return the number of values sent."""
        ...

    def send_epoch(self, point: Point) -> int:
        """Send what a whole segment came to, unless the run has it; return the number of values sent."""
        ...


class Runs(Protocol):
    """The runs of one comparison. Every method may raise whatever a tracker can get wrong."""

    def open_cell(self, cell: str, facts: Mapping[str, str]) -> TrackedRun:
        """Return the cell's run below the comparison's, made if need be, with the facts as parameters."""
        ...

    def delete_stale_runs(self, figures: Mapping[str | None, Mapping[str, float]]) -> None:
        """Have no run show a final figure that is not among `figures`: a withheld speedup must not stay visible."""
        ...

    def send_figures(self, figures: Mapping[str | None, Mapping[str, float]]) -> int:
        """Set the final figures of the runs that are open; return the number of values sent.

        `figures`: cell -> name -> value, and under None those of the comparison.
        """
        ...

    def send_report(self, folder: Path, *, tables: Mapping[str, Rows], tags: Tags) -> None:
        """Keep the report's files and tables in the comparison's run, unless it has these very files; set all tags."""
        ...


class Tracker(Protocol):
    """What a file of this folder offers."""

    def choose_uri(self, asked: str | None) -> str:
        """Return where runs are kept, given what params.yaml says of it; may hold credentials, so never printed."""
        ...

    def open_runs(self, comparison: TrackedComparison, *, uri: str) -> Runs:
        """Return the comparison's runs there; raises whatever a tracker can get wrong."""
        ...

    def find_site(self, uri: str) -> "Callable[[], ASGIApp] | None":
        """Return what makes the tracker's own pages on these runs, to be served here; None if another serves them."""
        ...


def load_tracker(name: str) -> Tracker:
    """Return the file of this folder with that name."""
    found: Tracker = import_file("tasks.services.trackers", name)
    return found
