"""What the stages tell a tracker, never at the cost of a training.

The files on disk are the truth. Whatever the tracker lacks of them is sent, in batches and once; what it has is never
sent again. A tracker that cannot be reached costs one warning line and is caught up with later.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.params import Params
from tasks.process.failure import PreemptedError
from tasks.records.run import CellFacts, RunFile
from tasks.records.stage_file import StageFile
from tasks.services.follower import Follower, attempt_within, send_segments
from tasks.services.tracked import (
    TrackedComparison,
    collect_final_figures,
    describe_comparison,
    flatten,
    make_gate_tags,
    make_tables,
)
from tasks.services.trackers import Runs, TrackedRun, load_tracker
from training.process.files import digest_file
from training.process.redaction import redact

_log = logging.getLogger(__name__)

PENDING = Path(".work/tracking/pending.json")
"""The comparison whose last report could not be sent; `make mlflow` tries again."""
REPORT_SECONDS = 300.0
"""At most, for sending a whole report."""


class PendingReport(StageFile):
    """A report that the tracker missed."""

    comparison: TrackedComparison
    """What it is about."""
    reports: Path
    """Folder of the report."""
    cells: dict[Path, str]
    """Folder of each cell's run -> sha256 of its run.json then."""


def choose_uri(params: Params) -> str:
    """Return where the tracker keeps the runs; may hold credentials, so it is never printed."""
    return load_tracker(params.tracking.tracker).choose_uri(params.tracking.uri)


@contextmanager
def follow_cell(params: Params, run: CellFacts, *, slices: Path, machine: Path) -> Iterator[Follower]:
    """Yield what forwards a cell's steps to its run while it trains, and sends the rest when it is left.

    `run` is the beginning of run.json: all but the segments. Nothing that a tracker does raises here or takes longer
    than follower.OPEN_SECONDS before and follower.CLOSE_SECONDS after the training.
    """

    def open_run() -> TrackedRun:
        runs = _open_runs(params, describe_comparison(params, run, slices=slices, machine=machine))
        return runs.open_cell(run.cell, flatten(run.model_dump()))

    follower = Follower(open_run)
    follower.open()
    status = "FAILED"
    try:
        yield follower
        status = "FINISHED"
    except (KeyboardInterrupt, SystemExit, PreemptedError):
        status = "KILLED"
        raise
    finally:
        follower.close(status)


def log_report(
    params: Params, results: Mapping[str, Any], *, reports: Path, runs: Path, slices: Path, machine: Path
) -> None:
    """Send all cells, the final figures, the gates and the report's files; a failure is one warning line."""
    first = RunFile.read(runs / params.baseline)
    comparison = describe_comparison(params, first, slices=slices, machine=machine)
    send_report(params, comparison, results, reports=reports, cells=[runs / cell for cell in params.cells])


def send_report(
    params: Params, comparison: TrackedComparison, results: Mapping[str, Any], *, reports: Path, cells: list[Path]
) -> bool:
    """Send a finished comparison and return True, or warn, note it in PENDING and return False."""

    def send() -> int:
        runs = _open_runs(params, comparison)
        figures = collect_final_figures(results)
        runs.delete_stale_runs(figures)
        sent = sum(_send_cell(runs, folder) for folder in cells)
        sent += runs.send_figures(figures)
        runs.send_report(reports, tables=make_tables(results), tags=make_gate_tags(results))
        return sent

    sent, problem = attempt_within(REPORT_SECONDS, send)
    shown = redact(choose_uri(params))
    if problem is None:
        _log.info("tracker: %d values sent to experiment %s in %s", sent, comparison.experiment, shown)
        PENDING.unlink(missing_ok=True)
        return True
    _log.warning("tracker: %s (%s); the report is whole without it, and `make mlflow` sends it later", problem, shown)
    digests = {folder: digest_file(RunFile.path_in(folder)) for folder in cells}
    PendingReport(comparison=comparison, reports=reports, cells=digests).write(PENDING)
    return False


def _open_runs(params: Params, comparison: TrackedComparison) -> Runs:
    return load_tracker(params.tracking.tracker).open_runs(comparison, uri=choose_uri(params))


def _send_cell(runs: Runs, folder: Path) -> int:
    """Send what the tracker lacks of the finished cell in `folder`; return the number of values sent."""
    facts = RunFile.read(folder)
    run = runs.open_cell(facts.cell, flatten(facts.content(exclude={"segments", "final_checkpoint"})))
    sent = send_segments(run, [folder / part.folder for part in facts.segments])
    run.set_status("FINISHED")
    return sent
