"""MLflow: one parent run per comparison, one child run per cell, never at the cost of a training.

The files on disk are the truth. Whatever the store lacks of them is sent, in batches and once; what it has is never
sent again. A tracker that cannot be reached costs one warning line and is caught up with later.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.params import Params
from tasks.process.failure import PreemptedError
from tasks.records.run import CellFacts, RunFile
from tasks.services.follower import Follower, attempt_within
from tasks.services.tracked import (
    Point,
    Rows,
    Tags,
    TrackedComparison,
    collect_final_figures,
    describe_comparison,
    flatten,
    make_gate_tags,
    make_tables,
    read_segment_points,
)
from training.process.files import digest_file, digest_json, write_json
from training.process.redaction import redact

_log = logging.getLogger(__name__)

PENDING = Path(".work/tracking/pending.json")
"""The comparison whose last report could not be sent; `make mlflow` tries again."""
REPORT_SECONDS = 300.0
"""At most, for sending a whole report."""

_MAX_METRICS_PER_CALL = 1_000
_MAX_PARAMS_PER_CALL = 100
_STEP_ANCHOR, _EPOCH_ANCHOR = "num_tokens", "epoch/num_tokens"
"""Every point has this metric and is stored whole or not at all: it tells which points the store has."""


@contextmanager
def follow_cell(params: Params, run: CellFacts, *, slices: Path, machine: Path) -> Iterator[Follower]:
    """Yield what forwards a cell's steps to its MLflow run while it trains, and sends the rest when it is left.

    `run` is the beginning of run.json: all but the segments. Nothing that a tracker does raises here or takes longer
    than follower.OPEN_SECONDS before and follower.CLOSE_SECONDS after the training.
    """

    def open_run() -> _CellRun:
        store = _Store(describe_comparison(params, run, slices=slices, machine=machine))
        return store.open_cell(run.cell, run.model_dump())

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


def sync_cell(params: Params, run_folder: Path, *, slices: Path, machine: Path) -> int | None:
    """Send what the tracker lacks of a finished cell; return the number of values sent, None if it failed."""

    def sync() -> int:
        run = RunFile.read(run_folder)
        return _Store(describe_comparison(params, run, slices=slices, machine=machine)).sync_cell(run_folder)

    sent, problem = attempt_within(REPORT_SECONDS, sync)
    if problem:
        _log.warning("tracker: %s; the report sends what is missing", problem)
    return sent


def log_report(
    params: Params, results: Mapping[str, Any], *, reports: Path, runs: Path, slices: Path, machine: Path
) -> None:
    """Send all cells, the final figures, the gates and the report's files; a failure is one warning line."""
    first = RunFile.read(runs / params.baseline)
    comparison = describe_comparison(params, first, slices=slices, machine=machine)
    send_report(comparison, results, reports=reports, cells=[runs / cell for cell in params.cells])


def send_report(comparison: TrackedComparison, results: Mapping[str, Any], *, reports: Path, cells: list[Path]) -> bool:
    """Send a finished comparison and return True, or warn, note it in PENDING and return False."""

    def send() -> int:
        store = _Store(comparison)
        figures = collect_final_figures(results)
        store.delete_stale_runs(figures)
        store.open_parent()
        sent = sum(store.sync_cell(folder) for folder in cells)
        sent += store.send_figures(figures)
        store.send_report(reports, tables=make_tables(results), tags=make_gate_tags(results))
        return sent

    sent, problem = attempt_within(REPORT_SECONDS, send)
    shown = redact(comparison.uri)
    if problem is None:
        _log.info("tracker: %d values sent to experiment %s in %s", sent, comparison.experiment, shown)
        PENDING.unlink(missing_ok=True)
        return True
    _log.warning("tracker: %s (%s); the report is whole without it, and `make mlflow` sends it later", problem, shown)
    fingerprints = {str(folder): digest_file(folder / "run.json") for folder in cells}
    write_json(PENDING, {"comparison": comparison.omit_uri(), "reports": str(reports), "cells": fingerprints})
    return False


@dataclass(frozen=True)
class _CellRun:
    """One cell's run in the store."""

    store: "_Store"
    run: Any
    """MLflow's own view of it."""

    def set_status(self, status: str) -> None:
        self.store.set_status(self.run, status)

    def send_points(self, points: Iterable[Point]) -> int:
        return self.store.send_points(self.run, points, anchor=_STEP_ANCHOR)

    def send_segments(self, folders: Iterable[Path]) -> int:
        sent = 0
        for folder in folders:
            points, epoch = read_segment_points(folder)
            sent += self.send_points(points) + self.store.send_points(self.run, [epoch], anchor=_EPOCH_ANCHOR)
        return sent


class _Store:
    """The runs of one comparison in MLflow. Every method may raise whatever a tracker can get wrong."""

    def __init__(self, comparison: TrackedComparison) -> None:
        # MLflow's own patience is 7 tries of 120 seconds each.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient

        # Failures become one line of ours; theirs are pages, with the address in them.
        for name in ("mlflow", "alembic", "urllib3.connectionpool"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._comparison = comparison
        # MLflow writes this path into its SQL as it is, where quotation marks end it; a URI has none.
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = (Path.cwd() / "mlruns").as_uri()
        self._client = MlflowClient(tracking_uri=comparison.uri)
        self._known: dict[tuple[str, str], set[int]] = {}
        found = self._client.get_experiment_by_name(comparison.experiment)
        self._experiment_id = found.experiment_id if found else self._client.create_experiment(comparison.experiment)
        self._read_runs()

    def open_parent(self) -> Any:
        """Return the comparison's run, made if need be."""
        tags = {"mlflow.note.content": self._comparison.description}
        return self._open(None, name=self._comparison.name, facts=self._comparison.facts, tags=tags)

    def open_cell(self, cell: str, facts: Mapping[str, Any]) -> _CellRun:
        """Return the cell's run below the comparison's, made if need be, with the facts as parameters."""
        tags = {"mlflow.parentRunId": self.open_parent().info.run_id, "ddp_compare.cell": cell}
        return _CellRun(self, self._open(cell, name=cell, facts=flatten(facts), tags=tags))

    def sync_cell(self, folder: Path) -> int:
        """Send what the store lacks of the finished cell in `folder`; return the number of values sent."""
        facts = RunFile.read(folder)
        run = self.open_cell(facts.cell, facts.content(exclude={"segments", "final_checkpoint"}))
        sent = run.send_segments(folder / part.folder for part in facts.segments)
        run.set_status("FINISHED")
        return sent

    def send_points(self, run: Any, points: Iterable[Point], *, anchor: str) -> int:
        """Send the points that the run does not have yet; return the number of values sent."""
        from mlflow.entities import Metric

        known = self._read_known_steps(run.info.run_id, anchor)
        missing = {point.step: point for point in points if point.step not in known}
        sent = 0
        batch: list[Any] = []
        steps: list[int] = []
        for point in [*missing.values(), None]:
            # A point is never split over two calls, and each call is one transaction.
            if batch and (point is None or len(batch) + len(point.values) > _MAX_METRICS_PER_CALL):
                self._client.log_batch(run.info.run_id, metrics=batch)
                known.update(steps)
                sent, batch, steps = sent + len(batch), [], []
            if point is not None:
                batch += [Metric(key, value, point.timestamp_ms, point.step) for key, value in point.values.items()]
                steps.append(point.step)
        return sent

    def set_status(self, run: Any, status: str) -> None:
        """Set the run's status; a finished one keeps its end."""
        if self._client.get_run(run.info.run_id).info.status == status:
            return
        if status == "RUNNING":
            self._client.update_run(run.info.run_id, status=status)
        else:
            self._client.set_terminated(run.info.run_id, status)

    def send_figures(self, figures: Mapping[str | None, Mapping[str, float]]) -> int:
        """Set the final figures of the runs that are open; return the number of values sent."""
        from mlflow.entities import Metric

        now, sent = int(time.time() * 1000), 0
        for cell, values in figures.items():
            run = self._runs[cell]
            changed = {key: value for key, value in values.items() if run.data.metrics.get(key) != value}
            if changed:
                self._client.log_batch(run.info.run_id, metrics=[Metric(key, changed[key], now, 0) for key in changed])
                sent += len(changed)
        return sent

    def delete_stale_runs(self, figures: Mapping[str | None, Mapping[str, float]]) -> None:
        """Delete the comparison's runs if one shows a final figure that is not among `figures`.

        MLflow cannot delete a metric, and a withheld speedup must not stay visible.
        """
        allowed = {(cell, key) for cell, values in figures.items() for key in values}
        shown = {(cell, key) for cell, run in self._runs.items() for key in run.data.metrics if "final/" in key}
        if shown <= allowed:
            return
        _log.info("tracker: figures that it shows are withheld now; writing the comparison's runs anew")
        for run in self._runs.values():
            self._client.delete_run(run.info.run_id)
        self._known.clear()
        self._read_runs()

    def send_report(self, folder: Path, *, tables: Mapping[str, Rows], tags: Tags) -> None:
        """Keep the report's files and tables in the comparison's run, unless it has these very files; set all tags."""
        from mlflow.entities import RunTag

        # reports/hub/ is what the next stage publishes: checkpoints. README.md says what the folder is for.
        files = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
        files = {name: path for name, path in files.items() if name.parts[0] not in ("hub", ".gitignore", "README.md")}
        digest = digest_json({name.as_posix(): digest_file(path) for name, path in files.items()})
        run = self.open_parent()
        if run.data.tags.get("ddp_compare.report") != digest:
            for name, path in files.items():
                inside = name.parent.as_posix()
                self._client.log_artifact(run.info.run_id, str(path), None if inside == "." else inside)
            self._send_tables(run, tables)
        own = {"ddp_compare.report": digest, "mlflow.note.content": self._comparison.description}
        for cell, wanted in {**tags, None: {**tags[None], **own}}.items():
            has = self._runs[cell].data.tags
            changed = [RunTag(key, value) for key, value in wanted.items() if has.get(key) != value]
            self._client.log_batch(self._runs[cell].info.run_id, tags=changed)
        self.set_status(run, "FINISHED")

    def _send_tables(self, run: Any, tables: Mapping[str, Rows]) -> None:
        """Keep the tables where MLflow's UI shows them as such, in place of those of an earlier report."""
        import pandas
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        kept = get_artifact_repository(run.info.artifact_uri)
        present = {file.path for file in kept.list_artifacts("tables")}
        for name, rows in tables.items():
            if (path := f"tables/{name}.json") in present:
                # MLflow adds rows to a table that is there.
                kept.delete_artifacts(path)
            if rows:
                self._client.log_table(run.info.run_id, data=pandas.DataFrame(rows), artifact_file=path)

    def _read_runs(self) -> None:
        runs = self._client.search_runs(
            [self._experiment_id],
            filter_string=f"tags.\"ddp_compare.comparison\" = '{self._comparison.digest}'",
            order_by=["attributes.start_time DESC"],
        )
        self._runs: dict[str | None, Any] = {run.data.tags.get("ddp_compare.cell"): run for run in runs}

    def _open(self, cell: str | None, *, name: str, facts: Mapping[str, str], tags: Mapping[str, str]) -> Any:
        from mlflow.entities import Param

        if cell not in self._runs:
            all_tags = {**tags, "ddp_compare.comparison": self._comparison.digest}
            self._runs[cell] = self._client.create_run(self._experiment_id, run_name=name, tags=all_tags)
        run = self._runs[cell]
        missing = [Param(key, value) for key, value in facts.items() if key not in run.data.params]
        for start in range(0, len(missing), _MAX_PARAMS_PER_CALL):
            self._client.log_batch(run.info.run_id, params=missing[start : start + _MAX_PARAMS_PER_CALL])
        if missing:
            self._runs[cell] = self._client.get_run(run.info.run_id)
        return self._runs[cell]

    def _read_known_steps(self, run_id: str, anchor: str) -> set[int]:
        if (run_id, anchor) not in self._known:
            history = self._client.get_metric_history(run_id, anchor)
            self._known[run_id, anchor] = {metric.step for metric in history}
        return self._known[run_id, anchor]
