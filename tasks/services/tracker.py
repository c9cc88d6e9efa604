"""What the stages tell the trackers, never at the cost of a training.

The files on disk are the truth. Whatever a tracker lacks of them is sent, in batches and once; what it has is never
sent again. A tracker that cannot be reached costs one warning line and is caught up with later.
"""

import functools
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddp_audit.process.redaction import redact
from tasks.params import Params
from tasks.process.failure import PreemptedError
from tasks.records.run import CellFacts, RunFile
from tasks.records.stage_file import StageFile
from tasks.services.follower import Follower, Followers, attempt_within, send_segments
from tasks.services.tracked import (
    Report,
    TrackedComparison,
    collect_report,
    describe_comparison,
    flatten,
)
from tasks.services.trackers import Runs, TrackedRun, load_tracker
from training.process.files import digest_file

_log = logging.getLogger(__name__)

PENDING = Path(".work/tracking")
"""Folder of `PendingReport`s, one per comparison; its own next report or `make mlflow` sends it."""
_RESULTS = "results.json"
REPORT_SECONDS = 300.0
"""At most, for sending a whole report."""


class PendingReport(StageFile):
    """A report that trackers missed."""

    comparison: TrackedComparison
    """What it is about."""
    trackers: list[str]
    """Those that missed it."""
    reports: Path
    """Folder of the report."""
    cells: dict[Path, str]
    """Folder of each cell's run -> sha256 of its run.json then."""
    results: str | None = None
    """sha256 of the report's results.json then."""

    def is_there(self) -> bool:
        """Return whether the folders still hold the cells and the report that were missed."""
        files = {RunFile.path_in(folder): digest for folder, digest in self.cells.items()}
        if self.results is not None:
            files[self.reports / _RESULTS] = self.results
        return all(file.is_file() and digest_file(file) == digest for file, digest in files.items())


@contextmanager
def follow_cell(params: Params, run: CellFacts, *, slices: Path, machine: Path) -> Iterator[Followers]:
    """Yield what forwards a cell's steps to its runs while it trains, and sends the rest when it is left.

    `run` is the beginning of run.json: all but the segments. Nothing that a tracker does raises here or takes longer
    than follower.CLOSE_SECONDS after the training.
    """

    def open_run(tracker: str) -> TrackedRun:
        runs = _open_runs(tracker, params, describe_comparison(params, run, slices=slices, machine=machine))
        return runs.open_cell(run.cell, flatten(run.model_dump()))

    followers = Followers(
        *(Follower(tracker, functools.partial(open_run, tracker)) for tracker in params.tracking.kinds)
    )
    status = "FAILED"
    try:
        yield followers
        status = "FINISHED"
    except (KeyboardInterrupt, SystemExit, PreemptedError):
        status = "KILLED"
        raise
    finally:
        followers.close(status)


def log_report(
    params: Params, results: Mapping[str, Any], *, reports: Path, runs: Path, slices: Path, machine: Path
) -> None:
    """Send all cells, the final figures, the gates and the report's files; a failure is one warning line."""
    first = RunFile.read(runs / params.baseline)
    comparison = describe_comparison(params, first, slices=slices, machine=machine)
    cells = [runs / cell for cell in params.cells]
    send_report(params, comparison, results, reports=reports, cells=cells, trackers=params.tracking.kinds)


def send_report(
    params: Params,
    comparison: TrackedComparison,
    results: Mapping[str, Any],
    *,
    reports: Path,
    cells: list[Path],
    trackers: list[str],
) -> bool:
    """Send a finished comparison to the trackers and return True, or warn, note who missed it and return False."""
    report, runs = collect_report(results, reports), {folder.name: folder for folder in cells}
    missed = []
    for tracker in trackers:
        sent, problem = attempt_within(REPORT_SECONDS, _send, tracker, params, comparison, runs, report)
        shown = redact(load_tracker(tracker).choose_uri(params.tracking.uri))
        if problem is None:
            _log.info("%s: %d values sent to %s in %s", tracker, sent, comparison.experiment, shown)
        else:
            missed.append(tracker)
            _log.warning(
                "%s: %s (%s); the report is whole without it, and `make mlflow` sends it later", tracker, problem, shown
            )
    pending = PENDING / f"{comparison.digest}.json"
    if not missed:
        pending.unlink(missing_ok=True)
        return True
    digests = {folder: digest_file(RunFile.path_in(folder)) for folder in cells}
    PendingReport(
        comparison=comparison, trackers=missed, reports=reports, cells=digests, results=digest_file(reports / _RESULTS)
    ).write(pending)
    return False


def send_pending(params: Params) -> bool:
    """Send the reports that trackers missed, of what the folders still hold; return False if one cannot be reached."""
    are_sent = True
    for file in sorted(PENDING.glob("*.json")):
        pending = PendingReport.read(file)
        if not pending.is_there():
            _log.warning(
                "%s: the report of %s that this missed is here no more; put its params back, run `make compare`, then "
                "the same again; or delete %s", ", ".join(pending.trackers), pending.comparison.name, file,
            )  # fmt: skip
            continue
        results = json.loads((pending.reports / _RESULTS).read_bytes())
        if send_report(
            params, pending.comparison, results, reports=pending.reports, cells=list(pending.cells),
            trackers=pending.trackers,
        ):  # fmt: skip
            file.unlink(missing_ok=True)
        else:
            are_sent = False
    return are_sent


def send_trials(
    params: Params, search: TrackedComparison, runs: Mapping[str, Path], report: Report | None = None
) -> None:
    """Send what the trackers lack of the trials (name -> folder of its run), and what the search came to at its end.

    A tracker that cannot be reached is one warning line: the next search sends what it missed.
    """
    for tracker in params.tracking.kinds:
        _, problem = attempt_within(REPORT_SECONDS, _send, tracker, params, search, runs, report)
        if problem is not None:
            _log.warning("%s: %s; nothing is lost, the next `make search` sends what is missing", tracker, problem)


def _send(
    tracker: str, params: Params, comparison: TrackedComparison, runs: Mapping[str, Path], report: Report | None
) -> int:
    """Send what the tracker lacks of finished runs (name -> folder) and of the report; return the number of values."""
    store, sent = _open_runs(tracker, params, comparison), 0
    if report is not None:
        store.withdraw(report.figures)
    for name, folder in runs.items():
        facts = RunFile.read(folder)
        run = store.open_cell(name, flatten(facts.content(exclude={"segments", "final_checkpoint"})))
        sent += send_segments(run, [folder / part.folder for part in facts.segments])
        run.set_status("FINISHED")
    return sent + (store.send_report(report) if report else 0)


def _open_runs(tracker: str, params: Params, comparison: TrackedComparison) -> Runs:
    result = load_tracker(tracker)
    return result.open_runs(comparison, uri=result.choose_uri(params.tracking.uri))
