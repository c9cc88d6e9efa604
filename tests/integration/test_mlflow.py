"""A real MLflow on a real SQLite store."""

import base64
import contextlib
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.process.failure import PreemptedError
from tasks.services import follower as following
from tasks.services.tracked import PublishedModel
from tasks.services.tracker import register_published
from tasks.services.trackers.mlflow import find_runs_page
from tests.tracked_run import ALL_STEPS, PARAMS, Place
from tests.tracker_stores import STORES, find_closed_port
from training.process.files import digest_file


class MlflowPlace(Place):
    """A project folder with a finished comparison and a store of its own."""

    def __init__(self, folder: Path, empty_store: Path) -> None:
        super().__init__(folder, ["mlflow"])
        self.store = folder / "mlflow.db"
        self.store.write_bytes(empty_store.read_bytes())

    @property
    def client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=f"sqlite:///{self.store}")

    def runs(self) -> dict[str, Any]:
        """The runs that the UI shows, by name."""
        experiment = self.client.get_experiment_by_name("ddp-compare")
        found = self.client.search_runs([experiment.experiment_id]) if experiment else []
        runs = {run.info.run_name: run for run in found}
        assert len(runs) == len(found)
        return runs

    def steps(self, cell: str, key: str = "loss") -> list[int]:
        """Every step at which the cell's run has the metric, one entry per stored value."""
        return [step for step, _ in STORES["mlflow"].read_values(self.folder)[cell][key]]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self.store, isolation_level=None)) as database:
            database.execute("BEGIN EXCLUSIVE")
            yield
            database.execute("ROLLBACK")


@pytest.fixture
def place(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowPlace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(following, "FLUSH_SECONDS", 0.1)
    return MlflowPlace(tmp_path, empty_store)


def _train_until_stopped(place: MlflowPlace) -> None:
    with place.follow() as follower:
        follower.send(place.events(1, 2, 3, 4))
        raise PreemptedError("stopped")


def test_a_report_makes_one_parent_with_a_child_per_cell_and_the_files(place: MlflowPlace) -> None:
    place.store.chmod(0o644)
    place.report(speedup=1.5)
    assert stat.S_IMODE(place.store.stat().st_mode) == 0o600
    runs = place.runs()
    parent = runs.pop("small")
    assert set(runs) == set(place.params.cells)
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {run.info.status for run in (parent, *runs.values())} == {"FINISHED"}
    assert parent.data.params["train.learning_rate"] == "0.002"
    assert parent.data.params["machine.versions.torch"] == "2.15"
    assert parent.data.tags["gate.Same rows same work"] == "passed: 1,600 rows and 1,600 rows"
    assert (parent.data.tags["speedup.1proc"], parent.data.tags["speedup.2proc"]) == ("proven", "proven")
    assert runs["2proc"].data.tags["gate.Same rows same work"] == "passed: 1,600 rows and 1,600 rows"
    assert runs["2proc"].data.tags["speedup"] == "proven"
    assert "gate.Same rows same work" not in runs["1proc"].data.tags
    inputs = {one.dataset.name: (one.tags[0].value, one.dataset.profile) for one in parent.inputs.dataset_inputs}
    ranges = [f"{place.params.dataset.source} {part}" for part in (*place.params.ranges, place.params.heldout)]
    assert list(inputs) == ranges
    assert [context for context, _ in inputs.values()] == ["training"] * (len(ranges) - 1) + ["evaluation"]
    assert runs["2proc"].data.params["world_size"] == "2"
    assert runs["2proc"].data.metrics["final/speedup"] == 1.5
    page = find_runs_page(f"sqlite:///{place.store}", "ddp-compare")
    key = f"mlflow.sharedViewState.{page.rpartition('viewStateShareKey=')[2]}"
    view = json.loads(place.client.get_experiment_by_name("ddp-compare").tags[key])
    found = {"attributes.`Description`": parent.data.tags["mlflow.note.content"]}
    for group, values in (("tags", parent.data.tags), ("metrics", parent.data.metrics)):
        found |= {f"{group}.`{name}`": value for name, value in values.items()}
    assert [found[column] for column in view["selectedColumns"]] == ["proven", 1.5, 2000.0, "proven, says the test"]
    kept = place.folder / "mlruns" / parent.info.experiment_id / parent.info.run_id / "artifacts"
    files = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
    tables = {f"tables/{name}.json" for name in ("gates", "cells", "epochs")}
    assert files == {"index.html", "report.md", "results.json", "charts/speedup.svg", *tables}


def test_what_was_published_is_one_version_of_a_model_below_the_run_of_its_cell(place: MlflowPlace) -> None:
    place.report(speedup=1.5)
    published = PublishedModel(
        name="small", cell="2proc", source="https://hub.example/me/small/tree/abc",
        results_digest=digest_file(place.folder / "reports" / "results.json"),
    )  # fmt: skip
    for _ in range(2):
        register_published(place.params, published)
    (version,) = place.client.search_model_versions("name = 'small'")
    assert version.source == published.source
    assert version.run_id == place.runs()["2proc"].info.run_id


def test_a_locked_store_delays_nothing_beyond_its_bound_and_loses_nothing(
    place: MlflowPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "OPEN_SECONDS", 0.5)
    monkeypatch.setattr(following, "CLOSE_SECONDS", 0.5)
    # Far below the 20 seconds that MLflow itself waits for the lock: a real bound, not a stopwatch.
    with place.locked(), place.follow() as follower:
        follower.send(place.events(*ALL_STEPS))
        follower.replay([])
        (worker,) = [thread for thread in threading.enumerate() if thread.name == "tracker"]
        assert worker.is_alive()
    assert "no answer in time" in caplog.text
    worker.join(120)
    place.report(speedup=None)
    assert place.steps("2proc") == ALL_STEPS


def test_a_training_that_was_asked_to_stop_does_not_wait_for_its_tracker(
    place: MlflowPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "OPEN_SECONDS", 0.2)
    monkeypatch.setattr(following, "CLOSE_SECONDS", 60.0)
    monkeypatch.setattr(following, "STOP_SECONDS", 0.2)
    # MLflow gives up on the lock after 20 seconds, its longest wait here if it were waited for.
    with place.locked():
        with pytest.raises(PreemptedError):
            _train_until_stopped(place)
        (worker,) = [thread for thread in threading.enumerate() if thread.name == "tracker"]
    # With the process it would have ended there.
    worker.join(120)
    place.report(speedup=None)
    assert place.steps("2proc") == ALL_STEPS


@contextlib.contextmanager
def _ui(place: MlflowPlace, project: Path) -> Iterator[tuple[int, dict[str, str], int]]:
    """Serve the UI as `make mlflow` does; yield its port, what it asks for and its pid."""
    (place.folder / "params.yaml").write_text(json.dumps(PARAMS))
    port = find_closed_port()
    environment = {**os.environ, "PYTHONPATH": str(project), "MLFLOW_PORT": str(port)}
    server = subprocess.Popen(
        [sys.executable, "-m", "tasks.services.tracker_ui"],
        cwd=place.folder, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _page(f"http://127.0.0.1:{port}/health", server)
        lines = (place.folder / ".work/mlflow.env").read_text().splitlines()
        yield port, dict(line.split("=", 1) for line in lines), server.pid
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        assert server.wait(30) == 0
    assert not (place.folder / ".work/mlflow.env").exists()


@pytest.fixture(scope="module")
def ui(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path, project: Path
) -> Iterator[tuple[MlflowPlace, int, dict[str, str], int]]:
    """The UI of a comparison with a speedup of 1.5: the place, the port, what it asks for and its pid."""
    place = MlflowPlace(tmp_path_factory.mktemp("ui"), empty_store)
    with contextlib.chdir(place.folder):
        place.report(speedup=1.5)
    with _ui(place, project) as (port, access, pid):
        yield place, port, access, pid


@pytest.mark.slow
def test_make_mlflow_is_for_its_own_user_on_loopback_and_for_its_own_pages(
    ui: tuple[MlflowPlace, int, dict[str, str], int], project: Path
) -> None:
    place, port, access, pid = ui
    create = {"path": "/api/2.0/mlflow/experiments/create", "body": {"name": "of somebody else"}}
    file, secret = place.folder / ".work/mlflow.env", access["MLFLOW_TRACKING_PASSWORD"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert _refused(port, {"path": "/"}) == 401
    assert _refused(port, {"path": "/ajax-api/3.0/mlflow/assistant/config"}) == 401
    assert _refused(port, create) == 401
    for headers in ({"Host": "evil.example:5000"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        assert _refused(port, create, access, **headers) == 403, headers
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    sockets = [at for one in processes for at in one.net_connections("inet") if at.status == psutil.CONN_LISTEN]
    assert {(at.laddr.ip, at.laddr.port) for at in sockets} == {("127.0.0.1", port)}
    assert not [one for one in processes if secret in " ".join(one.cmdline())]
    assert "experiment_id" in _read(port, create["path"], access, body=create["body"])

    taken = subprocess.run(
        [sys.executable, "-m", "tasks.services.tracker_ui", "--port", str(port)], cwd=place.folder,
        env={**os.environ, "PYTHONPATH": str(project)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert taken.returncode == 4
    (line,) = taken.stderr.splitlines()
    assert line.startswith(f"mlflow: port {port} is not to be had (Address already in use)")
    assert file.read_text().rstrip().endswith(secret), "the one that serves keeps its password"


def _read(port: int, path: str, access: dict[str, str] | None = None, *, body: Any = None, **headers: str) -> str:
    content = None if body is None else json.dumps(body).encode()
    if access:
        pair = f"{access['MLFLOW_TRACKING_USERNAME']}:{access['MLFLOW_TRACKING_PASSWORD']}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    address = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(address, content, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def _refused(port: int, asked: dict[str, Any], access: dict[str, str] | None = None, **headers: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        _read(port, asked["path"], access, body=asked.get("body"), **headers)
    return refusal.value.code


def _page(address: str, server: subprocess.Popen[bytes]) -> str:
    for _ in range(240):
        assert server.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            time.sleep(0.25)
    raise AssertionError("the server did not answer within 60 seconds")
