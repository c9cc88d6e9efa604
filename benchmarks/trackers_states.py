"""The states of a tracker that benchmarks/trackers.py looks at, each made for real beside a running training."""

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tasks.services import follower as following
from tasks.services.tracker import follow_cell

_PROJECT = Path(__file__).resolve().parent.parent
NONE = "no tracker"
STATES = [
    NONE, "MLflow, healthy", "MLflow, nobody listens", "MLflow, never answers", "MLflow, locked",
    "MLflow, answers after 2 s", "Prefect, healthy", "Prefect, nobody listens", "Prefect, never answers",
]  # fmt: skip


@contextlib.contextmanager
def locked(store: Path, *, seconds: float | None) -> Iterator[None]:
    """Hold the store's lock; with `seconds`, for so long again and again, with little room between."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as database:
            while not is_over.wait(0.1):
                database.execute("BEGIN EXCLUSIVE")
                is_held.set()
                is_over.wait(seconds)
                database.execute("ROLLBACK")

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def door(condition: str) -> socket.socket | None:
    """Return a port at which nobody listens, or where connections are taken and nothing is ever said; else None."""
    if condition not in ("nobody listens", "never answers"):
        return None
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    if condition == "never answers":
        taken.listen()
    return taken


@contextlib.contextmanager
def _in_mlflow(training: Any, condition: str, folder: Path) -> Iterator[None]:
    closed, store = door(condition), Path(tempfile.mkstemp(suffix=".db", dir=folder)[1])
    shutil.copy(folder / "empty.db", store)
    trouble: Any = closed or contextlib.nullcontext()
    if condition in ("locked", "answers after 2 s"):
        trouble = locked(store, seconds=None if condition == "locked" else 2.0)
    uri = f"http://127.0.0.1:{closed.getsockname()[1]}" if closed else f"sqlite:///{store}"
    params = training.run.params
    params = params.model_copy(update={"tracking": params.tracking.model_copy(update={"uri": uri})})
    where = {"slices": folder / "slices", "machine": folder / "machine.json"}
    with (
        # For what never answers a training would wait 20 seconds, before its ranks start.
        mock.patch.object(following, "OPEN_SECONDS", 0.0 if closed else following.OPEN_SECONDS),
        follow_cell(params, training.run.facts(), **where) as follower,
        # Ends first: what is left is then sent or given up at once, and not beside the next block.
        trouble,
    ):
        training.follower = follower
        yield
        training.follower = None


@contextlib.contextmanager
def _in_prefect(training: Any, condition: str, server: Any) -> Iterator[None]:
    # Not before the folder is the one of the benchmark: Prefect reads its settings there.
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows import progress

    closed = door(condition)
    url = f"http://127.0.0.1:{closed.getsockname()[1]}/api" if closed else server.url
    with (
        temporary_settings({PREFECT_API_URL: url}),
        # One look in a block of 10 s, as in 10 s of a training.
        mock.patch.object(progress, "SECONDS_BETWEEN_LOOKS", following.FLUSH_SECONDS),
        progress.show_in_prefect(f"train@{training.run.cell}"),
        closed or contextlib.nullcontext(),
    ):
        yield


@contextlib.contextmanager
def _awake(server: Any) -> Iterator[None]:
    os.kill(server._process.pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(server._process.pid, signal.SIGSTOP)


@contextlib.contextmanager
def prefect_server(folder: Path) -> Iterator[Any]:
    """Yield a server as `make compare` starts one; it stands still unless awake, so that its own work counts, too."""
    from flows.server import find_or_start

    shutil.copy(_PROJECT / "prefect.toml", folder)
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    server = find_or_start(temporary=True)
    try:
        server.wait_until_ready()
        os.kill(server._process.pid, signal.SIGSTOP)
        yield server
    finally:
        os.kill(server._process.pid, signal.SIGCONT)
        server.end()


@contextlib.contextmanager
def tracked(training: Any, state: str, folder: Path, server: Any) -> Iterator[None]:
    """Have the training followed by the tracker in this state; no thread of it is left afterwards."""
    tracker, _, condition = state.partition(", ")
    if state == NONE:
        yield
        return
    follows = _in_mlflow(training, condition, folder) if tracker == "MLflow" else None
    with _awake(server) if state == "Prefect, healthy" else contextlib.nullcontext():
        with follows or _in_prefect(training, condition, server):
            yield
        for thread in threading.enumerate():
            if thread.name in ("tracker", "progress"):
                thread.join()
