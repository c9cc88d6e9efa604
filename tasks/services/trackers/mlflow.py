"""MLflow: one parent run per comparison, one child run per cell, and values in batches."""

import contextlib
import itertools
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.services.tracked import (
    EPOCH_ANCHOR,
    HEADLINE,
    STEP_ANCHOR,
    Figures,
    Point,
    Report,
    TrackedComparison,
    find_checkout,
)
from training.process.files import digest_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_log = logging.getLogger(__name__)

PACKAGE = "mlflow"

_VIEW = "ddp-compare"
"""Key of the view of the list of runs that has what decides as columns; MLflow's own has none of it."""
_MAX_METRICS_PER_CALL = 1_000
_MAX_PARAMS_PER_CALL = 100


def choose_uri(asked: str | None) -> str:
    """Return what params.yaml says, else $MLFLOW_TRACKING_URI, else mlflow.db in this folder."""
    return asked or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{find_checkout() / 'mlflow.db'}"


def _close_to_others(uri: str) -> None:
    """Have this folder's own store be read by its user alone, as its UI is."""
    store = find_checkout() / "mlflow.db"
    if uri == f"sqlite:///{store}":
        with contextlib.suppress(PermissionError):  # somebody else's file
            store.touch(mode=0o600)
            store.chmod(0o600)


def make_site(uri: str) -> "ASGIApp":
    """Return MLflow's own app of a store: `mlflow server` has no place to put a lock in front of it."""
    _close_to_others(uri)
    # Without this MLflow starts a job queue, which takes memory and runs what its API is sent.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    # What `mlflow server` gives the process that serves.
    os.environ.update(_MLFLOW_SERVER_FILE_STORE=uri, _MLFLOW_SERVER_ARTIFACT_ROOT="mlflow-artifacts:/")
    from mlflow.server.fastapi_app import app

    site: ASGIApp = app
    return site


def open_runs(comparison: TrackedComparison, *, uri: str) -> "_Runs":
    """Return the comparison's runs in the store."""
    return _Runs(comparison, uri)


def find_runs_page(uri: str, experiment: str) -> str:
    """Return the path of the page that lists an experiment's runs: by itself MLflow opens an empty page of traces.

    Its columns, which the UI reads from a tag as it does for a view that somebody shares: state, speedup, throughput.
    """
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    result = client.get_experiment_by_name(experiment)
    if result is None or result.lifecycle_stage == "deleted":
        return "/"
    columns = ["tags.`state`", *(f"metrics.`{name}`" for name in HEADLINE), "attributes.`Description`"]
    widths = dict(zip(columns, (110, 130, 200, 420), strict=True))
    view = json.dumps({"selectedColumns": columns, "columnOrder": columns, "columnWidths": widths})
    client.set_experiment_tag(result.experiment_id, f"mlflow.sharedViewState.{_VIEW}", view)
    return f"/#/experiments/{result.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={_VIEW}"


class _Run:
    """A run in the store: of the comparison, or of a cell below it."""

    def __init__(self, client: Any, run: Any) -> None:
        self._client, self.run = client, run
        self.id = run.info.run_id
        self._known: set[tuple[bool, int]] | None = None

    def set_status(self, status: str) -> None:
        """Set the run's status; a finished one keeps its end."""
        if self._client.get_run(self.id).info.status == status:
            return
        if status == "RUNNING":
            self._client.update_run(self.id, status=status)
        else:
            self._client.set_terminated(self.id, status)

    def send(self, points: Iterable[Point]) -> int:
        """Send the points that the run does not have yet; return the number of values sent."""
        if self._known is None:
            self._known = {
                (anchor == EPOCH_ANCHOR, metric.step)
                for anchor in (STEP_ANCHOR, EPOCH_ANCHOR)
                for metric in self._client.get_metric_history(self.id, anchor)
            }
        missing = {point.place: point for point in points if point.place not in self._known}
        return self._send_batches(list(missing.values()), known=self._known)

    def _send_batches(self, points: list[Point], *, known: set[tuple[bool, int]] | None = None) -> int:
        """Send the points, which `known` gets as they arrive; return the number of values.

        A point is never split over two calls, and each call is one transaction.
        """
        sent = 0
        while points:
            sizes = itertools.accumulate(len(point.values) for point in points)
            number = max(1, sum(size <= _MAX_METRICS_PER_CALL for size in sizes))
            metrics = [metric for point in points[:number] for metric in _make_metrics(point)]
            self._client.log_batch(self.id, metrics=metrics)
            sent += len(metrics)
            if known is not None:
                known.update(point.place for point in points[:number])
            points = points[number:]
        return sent

    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Set the tags that differ."""
        from mlflow.entities import RunTag

        has = self.run.data.tags
        self._client.log_batch(self.id, tags=[RunTag(key, text) for key, text in tags.items() if has.get(key) != text])

    def log_figures(self, figures: Mapping[str, float]) -> int:
        """Set the final figures that differ; return how many."""
        has = self.run.data.metrics
        changed = {key: value for key, value in figures.items() if has.get(key) != value}
        if changed:
            self._client.log_batch(self.id, metrics=_make_metrics(Point(0, int(time.time() * 1000), changed)))
        return len(changed)

    def log_system(self, points: list[Point]) -> int:
        """Add what was read of hardware, which MLflow shows among its system metrics; once for each measurement."""
        digest = digest_json([[point.timestamp_ms, point.values] for point in points])
        if self.run.data.tags.get("ddp_compare.system") == digest:
            return 0
        sent = self._send_batches(points)
        self.log_tags({"ddp_compare.system": digest})
        return sent


def _make_metrics(point: Point) -> list[Any]:
    from mlflow.entities import Metric

    return [Metric(key, value, point.timestamp_ms, point.step) for key, value in point.values.items()]


class _Runs:
    """The runs of one comparison in MLflow."""

    def __init__(self, comparison: TrackedComparison, uri: str) -> None:
        # MLflow's own patience is 7 tries of 120 seconds each.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient

        # Failures become one line of ours; theirs are pages, with the address in them.
        for name in ("mlflow", "alembic", "urllib3.connectionpool"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._comparison = comparison
        # MLflow writes this path into its SQL as it is, where quotation marks end it; a URI has none.
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = (find_checkout() / "mlruns").as_uri()
        _close_to_others(uri)
        self._client = MlflowClient(tracking_uri=uri)
        result = self._client.get_experiment_by_name(comparison.experiment)
        if result is not None and result.lifecycle_stage == "deleted":
            # It takes no run, and keeps its name. Restored, it has all runs again that anybody had deleted.
            self._client.restore_experiment(result.experiment_id)
            while runs := self._client.search_runs([result.experiment_id]):  # a page of them
                for run in runs:
                    self._client.delete_run(run.info.run_id)
        self._experiment_id = result.experiment_id if result else self._client.create_experiment(comparison.experiment)
        self._read_runs()

    def open_parent(self) -> _Run:
        """Return the comparison's run, made if need be."""
        tags = {"mlflow.note.content": self._comparison.description}
        return self._open(None, name=self._comparison.name, facts=self._comparison.facts, tags=tags)

    def open_cell(self, cell: str, facts: Mapping[str, str]) -> _Run:
        """Return the cell's run below the comparison's, made if need be, with the facts as parameters."""
        tags = {"mlflow.parentRunId": self.open_parent().id, "ddp_compare.cell": cell}
        return self._open(cell, name=cell, facts=facts, tags=tags)

    def withdraw(self, figures: Figures) -> None:
        """Delete the comparison's runs if one shows a final figure that is not among `figures`.

        MLflow cannot delete a metric, and a withheld speedup must not stay visible.
        """
        allowed = {(cell, key) for cell, values in figures.items() for key in values}
        shown = {(cell, key) for cell, run in self._runs.items() for key in run.run.data.metrics if "final/" in key}
        if shown <= allowed:
            return
        _log.info("tracker: figures that it shows are withheld now; writing the comparison's runs anew")
        for run in self._runs.values():
            self._client.delete_run(run.id)
        self._read_runs()

    def send_report(self, report: Report) -> int:
        """Set figures and tags, and keep the files in the comparison's run, unless it has these very files."""
        parent, digest = self.open_parent(), report.digest
        sent = sum(self._runs[cell].log_figures(values) for cell, values in report.figures.items())
        if parent.run.data.tags.get("ddp_compare.report") != digest:
            for name, path in report.files.items():
                inside = Path(name).parent.as_posix()
                self._client.log_artifact(parent.id, str(path), None if inside == "." else inside)
        sent += sum(self._runs[cell].log_system(points) for cell, points in report.system.items())
        verdict = report.tags[None].get("verdict") or self._comparison.description
        own = {"ddp_compare.report": digest, "mlflow.note.content": verdict}
        for cell, tags in report.tags.items():
            self._runs[cell].log_tags({**tags, **({} if cell else own)})
        parent.set_status("FINISHED")
        return sent

    def _read_runs(self) -> None:
        runs = self._client.search_runs(
            [self._experiment_id],
            filter_string=f"tags.\"ddp_compare.comparison\" = '{self._comparison.digest}'",
            order_by=["attributes.start_time DESC"],
        )
        self._runs: dict[str | None, _Run] = {
            run.data.tags.get("ddp_compare.cell"): _Run(self._client, run) for run in runs
        }

    def _open(self, cell: str | None, *, name: str, facts: Mapping[str, str], tags: Mapping[str, str]) -> _Run:
        from mlflow.entities import Param

        if cell not in self._runs:
            all_tags = {**tags, "ddp_compare.comparison": self._comparison.digest}
            run = self._client.create_run(self._experiment_id, run_name=name, tags=all_tags)
            self._runs[cell] = _Run(self._client, run)
        opened = self._runs[cell]
        missing = [Param(key, value) for key, value in facts.items() if key not in opened.run.data.params]
        for start in range(0, len(missing), _MAX_PARAMS_PER_CALL):
            self._client.log_batch(opened.id, params=missing[start : start + _MAX_PARAMS_PER_CALL])
        if missing:
            opened.run = self._client.get_run(opened.id)
        return opened
