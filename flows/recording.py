"""What Prefect records of a run: its lines, and that it was killed.

Without its server, or where that does not answer, the comparison goes on.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import httpx
from prefect import State
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


def name_run(comparison: str, *tags: str) -> None:
    """Name this flow run after the comparison, and add it and `tags` to its tags, however it was started."""
    # Prefect's own name stays behind it, by which two runs of a comparison are told apart.
    name, all_tags = f"{comparison}, {flow_run.name}", sorted({*flow_run.tags, "ddp-compare", comparison, *tags})
    with tolerate_outage("this run has Prefect's own name"), get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name, tags=all_tags)


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
