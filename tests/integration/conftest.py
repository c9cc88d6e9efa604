"""One finished small comparison, made once; tests work on copies of it."""

import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from filelock import FileLock

from tests.canaries import SECRETS, CommandLines
from tests.listeners import Listeners
from tests.processes import new_mark
from tests.workspace import SMALL, Workspace
from training.process.files import write_json


@pytest.fixture(scope="session")
def finished(tmp_path_factory, project, warm):
    """A workspace in which the flow has run to the end, from nothing but Prefect's tables; its output: `first-run.log`.

    It ran with secrets in its environment (tests/canaries.py); command lines that held one are in command-lines.txt,
    and listeners.json says what its processes listened on. Nobody changes it.
    """
    database = _make_database(tmp_path_factory, project)

    def make(folder):
        workspace = Workspace.create(folder / "project", project=project, changes=SMALL, programs=warm)
        (workspace.folder / ".prefect").mkdir(mode=0o700)
        shutil.copy(database, workspace.folder / ".prefect")
        mark = new_mark()
        with CommandLines() as command_lines, Listeners(mark) as listeners:
            (workspace.folder / "first-run.log").write_text(workspace.flow(**SECRETS, **mark))
        write_json(folder / "listeners.json", [asdict(listener) for listener in listeners.found])
        (folder / "command-lines.txt").write_text("\n".join([str(command_lines.num_looks), *command_lines.found]))

    return Workspace(_make_once(tmp_path_factory, "finished", make) / "project")


@pytest.fixture(scope="session")
def prefect_database(tmp_path_factory, project):
    """A database of Prefect with nothing but its tables: making them takes longer than all else of a server's start."""
    return _make_database(tmp_path_factory, project)


def _make_database(tmp_path_factory, project):
    def make(folder):
        environment = {**os.environ, "PREFECT_HOME": str(folder), "PREFECT_PLUGINS_ENABLED": "false"}
        subprocess.run([sys.executable, "-c", _MAKE_TABLES], cwd=project, env=environment, check=True, timeout=300)

    return _make_once(tmp_path_factory, "prefect", make) / "prefect.db"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A store of MLflow with its tables: making them takes over a second, each time."""
    from mlflow import MlflowClient

    def make(folder):
        MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}").search_experiments()

    return _make_once(tmp_path_factory, "store", make) / "mlflow.db"


_MAKE_TABLES = """
import asyncio
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""


def _make_once(tmp_path_factory, name, make):
    """Return a folder that `make` has filled once for all processes of `make test`, or for a test run by itself."""
    shared = os.environ.get("DDP_COMPARE_FINISHED")
    folder = (Path(shared) if shared else tmp_path_factory.mktemp("shared")) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / "made").exists():
            # One that failed before may have left a half of it.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture
def workspace(finished, tmp_path, warm):
    """A copy of the finished workspace for one test, whose stages and ranks start at once."""
    return finished.copy(tmp_path / "project", programs=warm)
