"""Which flow runs still run: a killed one leaves a file without a lock, and is told to Prefect as crashed."""

import fcntl
import logging
import os
import tempfile
import time
from pathlib import Path
from uuid import UUID

from prefect import State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Crashed

from flows.outage import tolerate_outage

logger = logging.getLogger(__name__)

FOLDER = Path(".work/flow_runs")
_SECONDS_KEPT = 30 * 86_400


def mark_running() -> None:
    """Lock a file named after this flow run until this process ends, which lets it go even after a kill -9.

    Prefect learns of the end of a run after the flow has returned, so that only a later start can tell, from the
    server, whether it did.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Locked before it has the name that others look at, and never closed.
    handle, name = tempfile.mkstemp(dir=FOLDER, prefix=".")
    fcntl.flock(handle, fcntl.LOCK_EX)
    Path(name).replace(FOLDER / str(flow_run.id))


def wait_for_runs(*, seconds: float) -> None:
    """Return once no flow run of this folder is alive, after so many seconds at most."""
    deadline = time.monotonic() + seconds
    while any(map(_is_alive, FOLDER.glob("[!.]*"))) and time.monotonic() < deadline:
        time.sleep(0.1)


def _is_alive(file: Path) -> bool:
    try:
        with file.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def name_run(comparison: str, *tags: str) -> None:
    """Name this flow run after the comparison, and add tags to it, however it was started."""
    # Prefect's own name stays behind it, by which two runs of a comparison are told apart.
    name = f"{comparison}, {flow_run.name}"
    with tolerate_outage("this run has Prefect's own name"), get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name, tags=sorted({*flow_run.tags, *tags}))


def end_abandoned_runs() -> None:
    """Set the runs that were killed to Crashed: Prefect would show them as Running, and keep their slot taken."""
    if not FOLDER.is_dir():
        return
    with get_client(sync_client=True) as client:
        for file in FOLDER.glob("[!.]*"):
            try:
                with file.open() as handle:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _settle_run(client, UUID(file.name)) or time.time() - file.stat().st_mtime > _SECONDS_KEPT:
                        file.unlink(missing_ok=True)
            except (BlockingIOError, FileNotFoundError):  # held by a live run, or just removed by another start
                continue


def _settle_run(client: SyncPrefectClient, run: UUID) -> bool:
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
