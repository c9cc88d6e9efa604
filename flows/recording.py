"""What Prefect records of a run: its lines, its progress, and that it was killed.

Without its server, or where that does not answer, the comparison goes on.
"""

import contextlib
import contextvars
import fcntl
import json
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import httpx
from prefect import State
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run
from prefect.states import Crashed

logger = logging.getLogger(__name__)

_FLOW_RUNS = Path(".work/flow_runs")
_SECONDS_KEPT = 30 * 86_400
_SECONDS_BETWEEN_UPDATES = 10.0
_BYTES_OF_LAST_LINES = 8_192


def is_recorded() -> bool:
    """Return whether this is a run of a flow: without a server there is none, and the stages run all the same."""
    return FlowRunContext.get() is not None


@contextlib.contextmanager
def tolerate_outage(what: str) -> Iterator[list[httpx.HTTPError]]:
    """Run the block; if the server does not answer, say in one line what that means, and go on.

    Yields a list that then holds the error.
    """
    errors: list[httpx.HTTPError] = []
    try:
        yield errors
    except httpx.HTTPError as error:
        errors.append(error)
        # Never its text, which may hold an address with credentials.
        logger.warning(
            "the Prefect server does not answer (%s): %s; the comparison goes on",
            f"HTTP {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else type(error).__name__,
            what,
        )


def set_up_flow_log() -> None:
    """Send the lines of `flows` to stderr and to the Prefect run that they belong to; calling it twice is fine."""
    flows = logging.getLogger("flows")
    if flows.handlers:
        return
    terminal = logging.StreamHandler()
    terminal.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    flows.addHandler(terminal)
    flows.addHandler(APILogHandler())
    flows.setLevel(logging.INFO)
    flows.propagate = False


def get_line_logger() -> logging.Logger:
    """Return the logger for lines of a stage, which stand on the terminal already: to the Prefect log alone."""
    lines = logging.getLogger("flows.lines")
    if not lines.handlers:
        lines.addHandler(APILogHandler())
        lines.propagate = False
    return lines


def name_run(comparison: str) -> None:
    """Name this flow run after the comparison, and add tags to it, however it was started."""
    # Prefect's own name stays behind it, by which two runs of a comparison are told apart.
    name, tags = f"{comparison}, {flow_run.name}", sorted({*flow_run.tags, "ddp-compare", comparison})
    with tolerate_outage("this run has Prefect's own name"), get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name, tags=tags)


def mark_running() -> None:
    """Lock a file named after this flow run until this process ends, which lets it go even after a kill -9.

    Prefect learns of the end of a run after the flow has returned, so that only a later start can tell, from the
    server, whether it did.
    """
    _FLOW_RUNS.mkdir(parents=True, exist_ok=True)
    # Locked before it has the name that others look at, and never closed.
    handle, name = tempfile.mkstemp(dir=_FLOW_RUNS, prefix=".")
    fcntl.flock(handle, fcntl.LOCK_EX)
    Path(name).replace(_FLOW_RUNS / str(flow_run.id))


def wait_for_runs(*, seconds: float) -> None:
    """Return once no flow run of this folder is alive, after so many seconds at most."""
    deadline = time.monotonic() + seconds
    while any(map(_is_alive, _FLOW_RUNS.glob("[!.]*"))) and time.monotonic() < deadline:
        time.sleep(0.1)


def end_killed_runs() -> None:
    """Set the runs that were killed to Crashed: Prefect would show them as Running, and keep their slot taken."""
    if not (killed := [file for file in _FLOW_RUNS.glob("[!.]*") if not _is_alive(file)]):
        return
    with get_client(sync_client=True) as client:
        for file in killed:
            with contextlib.suppress(FileNotFoundError):  # just removed by another start
                if _set_crashed(client, UUID(file.name)) or time.time() - file.stat().st_mtime > _SECONDS_KEPT:
                    file.unlink()


def _is_alive(file: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), file.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _set_crashed(client: SyncPrefectClient, run: UUID) -> bool:
    """Return True once the server knows that the run has ended; False for a run of another server."""
    crashed: State[None] = Crashed(message=f"Its process was killed; found by process {os.getpid()}.")
    try:
        state = client.read_flow_run(run).state
    except ObjectNotFound:
        return False
    if state is not None and state.is_final():
        return True
    for task_run in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run]))):
        if task_run.state is None or not task_run.state.is_final():
            client.set_task_run_state(task_run.id, crashed, force=True)
    client.set_flow_run_state(run, crashed)
    logger.info("flow run %s had been killed; it is now marked as crashed", run)
    return True


@contextlib.contextmanager
def show_progress_of(stage: str) -> Iterator[None]:
    """Keep a progress artifact of a training up to date while the block runs; does nothing for another stage."""
    own_name, _, cell = stage.partition("@")
    if own_name != "train" or not is_recorded():
        yield
        return
    is_over = threading.Event()
    # The run that the artifact belongs to is found through the context.
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(_update_progress, cell, is_over), name="progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=2)


def _update_progress(cell: str, is_over: threading.Event) -> None:
    """Read from what the ranks write anyway, every few seconds until the end, how far they are."""
    steps = Path(".work/runs", cell, "steps.jsonl")
    before = steps.stat().st_mtime_ns if steps.exists() else 0
    artifact: UUID | None = None
    shown = 0.0
    with tolerate_outage(f"no further progress of {cell} is shown"):
        while True:
            is_last = is_over.wait(_SECONDS_BETWEEN_UPDATES)
            # The file of an earlier launch says nothing about this one.
            is_new = steps.exists() and steps.stat().st_mtime_ns != before
            percent = round(100 * _read_share_done(steps), 1) if is_new else 0.0
            if percent > shown and artifact is not None:
                update_progress_artifact(artifact, percent)
            elif percent > shown and not is_last:
                # Keys take lower-case letters, digits and dashes.
                key = "train-" + re.sub("[^a-z0-9]", "-", cell.lower())
                result = create_progress_artifact(percent, key=key, description=f"Training of cell {cell}")
                assert isinstance(result, UUID)  # outside of an event loop it is no coroutine
                artifact = result
            shown = max(shown, percent)
            if is_last:
                return


def _read_share_done(steps: Path) -> float:
    """Return which share of its optimizer steps a training has taken, from its steps.jsonl; 0 if it says nothing."""
    with contextlib.suppress(OSError, ValueError, KeyError, ZeroDivisionError), steps.open("rb") as file:
        num_steps = int(json.loads(file.readline())["num_steps"])
        file.seek(max(0, steps.stat().st_size - _BYTES_OF_LAST_LINES))
        taken = re.findall(rb'"(?:last_)?step": ?(\d+)', file.read())
        return max(map(int, taken), default=0) / num_steps
    return 0.0
