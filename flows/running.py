"""Which flow runs still run: a killed one leaves a file without a lock, and is told to Prefect as crashed."""

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from prefect import State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Crashed

logger = logging.getLogger(__name__)

FOLDER = Path(".work/flow_runs")


@contextlib.contextmanager
def counted_as_running() -> Iterator[None]:
    """Hold the lock of a file named after this flow run, which the system lets go even after a kill -9."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / str(flow_run.id)
    # Locked before it has the name that others look at.
    with tempfile.NamedTemporaryFile(dir=FOLDER, prefix=".", delete=False) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        Path(handle.name).replace(file)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def end_abandoned_runs() -> None:
    """Set the runs that were killed to Crashed: Prefect would show them as Running, and keep their slot taken."""
    if not FOLDER.is_dir():
        return
    with get_client(sync_client=True) as client:
        for file in FOLDER.glob("[!.]*"):
            # Held by a live run, or just removed by its end.
            with contextlib.suppress(BlockingIOError, FileNotFoundError), file.open() as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _set_crashed(client, UUID(file.name))
                file.unlink(missing_ok=True)


def _set_crashed(client: SyncPrefectClient, run: UUID) -> None:
    crashed: State[None] = Crashed(message=f"Its process was killed; found by process {os.getpid()}.")
    try:
        state = client.read_flow_run(run).state
    except ObjectNotFound:  # another server's run
        return
    for task_run in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run]))):
        if task_run.state is None or not task_run.state.is_final():
            client.set_task_run_state(task_run.id, crashed, force=True)
    if state is None or not state.is_final():
        client.set_flow_run_state(run, crashed)
        logger.info("flow run %s had been killed; it is now marked as crashed", run)
