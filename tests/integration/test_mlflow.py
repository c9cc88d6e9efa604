"""A real MLflow on a real SQLite store."""

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from functools import partialmethod
from pathlib import Path

import mlflow
import psutil
import pytest
from mlflow import MlflowClient

from tasks.process.failure import PreemptedError
from tasks.services import follower as following
from tasks.services import tracker_ui
from tasks.services.trackers.mlflow import find_runs_page
from tests.flows.toy_project import free_port, wait_for
from tests.integration.prefect_api import find_status
from tests.integration.tracker_stores import STORES
from tests.tracked_run import ALL_STEPS, PARAMS, Place, step_event


@pytest.fixture
def place(tmp_path, empty_store, monkeypatch):
    """A project folder with a finished comparison and a store of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # MLflow leaves there, for the next client of a process, where that of another folder keeps its files.
    monkeypatch.delenv("_MLFLOW_SERVER_ARTIFACT_ROOT", raising=False)
    monkeypatch.setattr(following, "FLUSH_SECONDS", 0.1)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Place(tmp_path, ["mlflow"])


def test_a_report_makes_one_parent_with_a_child_per_cell_and_the_files(place, monkeypatch):
    store = place.folder / "mlflow.db"
    store.chmod(0o644)
    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    place.report(speedup=1.5)
    # Somebody deletes it, with more runs than a page of the search has.
    deleted = client.get_experiment_by_name("ddp-compare").experiment_id
    client.create_run(deleted, start_time=1, run_name="oldest")
    client.delete_experiment(deleted)
    with monkeypatch.context() as pages:
        pages.setattr(MlflowClient, "search_runs", partialmethod(MlflowClient.search_runs, max_results=3))
        place.report(speedup=1.5)
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    experiment = client.get_experiment_by_name("ddp-compare")
    found = client.search_runs([experiment.experiment_id])
    runs = {run.info.run_name: run for run in found}
    assert len(runs) == len(found)
    parent = runs.pop("small")
    assert set(runs) == set(place.params.cells)
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {run.info.status for run in (parent, *runs.values())} == {"FINISHED"}
    assert (parent.data.tags["speedup.2proc"], runs["2proc"].data.tags["speedup"]) == ("proven", "proven")
    assert "gate.Same rows same work" not in runs["1proc"].data.tags
    page = find_runs_page(f"sqlite:///{store}", "ddp-compare")
    key = f"mlflow.sharedViewState.{page.rpartition('viewStateShareKey=')[2]}"
    view = json.loads(client.get_experiment_by_name("ddp-compare").tags[key])
    found = {"attributes.`Description`": parent.data.tags["mlflow.note.content"]}
    for group, values in (("tags", parent.data.tags), ("metrics", parent.data.metrics)):
        found |= {f"{group}.`{name}`": value for name, value in values.items()}
    for columns in (view["selectedColumns"], view["columnOrder"], view["columnWidths"]):
        assert [found[column] for column in columns] == ["proven", 1.5, 2000.0, "proven, says the test"]
    (remembered,) = re.findall(r"setItem\('(.+)_v1'", tracker_ui.TO_RUNS)
    (scripts,) = (Path(mlflow.__file__).parent / "server/js/build/static/js").glob("main.*.js")
    assert all(f'"{key}"' in scripts.read_text(encoding="utf-8") for key in (*view, remembered)), "MLflow reads them"
    kept = place.folder / "mlruns" / parent.info.experiment_id / parent.info.run_id / "artifacts"
    files = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
    assert files == {"index.html", "report.md", "results.json", "charts/speedup.svg"}


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_locked_store_delays_nothing_beyond_its_bound_and_loses_nothing(is_stopped, place, monkeypatch):
    # Far below the 20 seconds that MLflow itself waits for the lock: a real bound, not a stopwatch.
    bounds = {"CLOSE_SECONDS": 60.0 if is_stopped else 0.5, "STOP_SECONDS": 0.2}
    for name, seconds in bounds.items():
        monkeypatch.setattr(following, name, seconds)
    with contextlib.closing(sqlite3.connect("mlflow.db", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        with contextlib.suppress(PreemptedError), place.follow() as follower:
            follower.send(place.events(*ALL_STEPS))
            if is_stopped:
                raise PreemptedError("stopped")
            follower.replay([])
        (worker,) = [thread for thread in threading.enumerate() if thread.name == "tracker"]
        assert worker.is_alive()
        database.execute("ROLLBACK")
    # With the process it would have ended there.
    worker.join(120)
    place.report(speedup=None)
    assert STORES["mlflow"].read_values(place.folder)["2proc"]["loss"] == [
        (step, step_event(step)["loss"]) for step in ALL_STEPS
    ]


@pytest.mark.slow
def test_make_mlflow_is_for_its_own_user_on_loopback_and_for_its_own_pages(place, project):
    (place.folder / "params.yaml").write_text(json.dumps(PARAMS))
    port, file = free_port(), place.folder / ".work/mlflow.env"
    command = [sys.executable, "-m", "tasks.services.tracker_ui", "--port", str(port)]

    def ask(path, body=None, **headers):
        return find_status(f"http://127.0.0.1:{port}{path}", body, **headers)

    # The folder is that of this process.
    told = {"env": {**os.environ, "PYTHONPATH": str(project)}}
    server = psutil.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **told)
    try:
        wait_for(lambda: server.poll() is not None or ask("/health") == 200, seconds=60, what="it answers")
        access = dict(line.split("=", 1) for line in file.read_text().splitlines())
        pair = f"{access['MLFLOW_TRACKING_USERNAME']}:{access['MLFLOW_TRACKING_PASSWORD']}"
        own = {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
        create = ("/api/2.0/mlflow/experiments/create", {"name": "of somebody else"})
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert ask("/") == ask("/ajax-api/3.0/mlflow/assistant/config") == ask(*create) == 401
        assert ask(*create, **own, Origin="http://evil.example") == 403
        processes = [server, *server.children(recursive=True)]
        sockets = [at for one in processes for at in one.net_connections("inet") if at.status == psutil.CONN_LISTEN]
        assert {(at.laddr.ip, at.laddr.port) for at in sockets} == {("127.0.0.1", port)}
        assert not [one for one in processes if access["MLFLOW_TRACKING_PASSWORD"] in " ".join(one.cmdline())]
        assert ask(*create, **own) == 200

        taken = subprocess.run(command, capture_output=True, text=True, timeout=60, **told)
        (line,) = taken.stderr.splitlines()
        assert taken.returncode == 4
        assert line.startswith(f"mlflow: port {port} is not to be had (Address already in use)")
        assert pair.partition(":")[2] in file.read_text(), "the one that serves keeps its password"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        assert server.wait(30) == 0
    assert not file.exists()
