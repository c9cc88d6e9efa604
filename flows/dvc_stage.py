"""One DVC stage as one Prefect task run: order, live log, `Cached` where DVC finds nothing to do."""

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.lock import LockError
from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed

from flows.outage import is_recorded
from flows.output import DVC_CHATTER, StageOutput
from flows.pipeline import content_of_lock, list_changes, remember_seconds, reproduce
from flows.progress import show_in_prefect
from flows.run_log import get_line_logger
from tasks.process.failure import ExitCode

logger = logging.getLogger(__name__)

LOGS = Path(".work/logs")
_RETRY_SECONDS: list[float] = [5, 20]
_MAX_REASONS = 4
_MAX_MESSAGE_CHARACTERS = 500


class StageFailed(Exception):  # noqa: N818 - what happened, not a kind of error
    """A stage ended with something else than 0; the message is its own one line."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_stage(
    stage: str,
    *,
    place: str,
    hours: float,
    retries: int = 0,
    environment: Mapping[str, str] | None = None,
    upstream: Sequence[State[Any]] = (),
) -> State[Any]:
    """Bring the stage up to date as a task run of its name, and return its state; its command gets `environment` on
    top of ours.

    `place` says in its lines which of the stages it is, such as "4 of 9". `upstream`: how the stages ended that it
    depends on, from which the graph of the run has its edges.

    After so many `hours` it is asked to save and ended. `retries` go to failures that another try may mend, such as an
    unreachable service, never to a bad input. Raises StageFailed.
    """
    if is_recorded():
        # Without tags: a task run with one asks the server for a slot before it starts, and fails if that is gone.
        task_here = _run_dvc_stage.with_options(retries=retries, timeout_seconds=hours * 3600)
        state = task_here(stage, place, dict(environment or {}), return_state=True, wait_for=upstream)
    else:
        for wait in [*_RETRY_SECONDS[:retries], None]:
            state = _run_dvc_stage.fn(stage, place, dict(environment or {}))
            if wait is None or not _may_retry(None, None, state):
                break
            time.sleep(wait)
    if state.name == "TimedOut":
        raise StageFailed(f"{stage}: ended after {hours:g} hours; what it saved is kept", ExitCode.RESOURCES)
    if state.is_failed():
        raise StageFailed(str(state.message), get_exit_code(state))
    return state


def get_exit_code(state: State[Any]) -> int:
    """Return the exit code that a failed state of ours carries, 1 for any other."""
    code = state.result(raise_on_failure=False)
    return code if isinstance(code, int) else 1


def _may_retry(_task: Task[Any, Any] | None, _run: object, state: State[Any]) -> bool:
    return state.is_failed() and get_exit_code(state) == ExitCode.RESOURCES


# Prefect's own cache stays off: it said "Cached" for outputs that had been deleted.
@task(
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retry_delay_seconds=_RETRY_SECONDS,
    retry_condition_fn=_may_retry,
)
def _run_dvc_stage(stage: str, place: str, environment: dict[str, str]) -> State[Any]:
    try:
        reasons = list_changes(stage)[stage]
    except LockError as error:
        return _make_failed_state(
            stage, f"another DVC works in this folder: {_describe_error(error)}", ExitCode.RESOURCES
        )
    except DvcException as error:
        return _make_failed_state(stage, _describe_error(error), 1)
    if reasons:
        more = len(reasons) - _MAX_REASONS
        return _reproduce(
            stage, place, environment, why=", ".join(reasons[:_MAX_REASONS]) + (f" and {more} more" if more > 0 else "")
        )
    logger.info("%s %s: cached, nothing has changed", place, stage)
    return Completed(name="Cached", message="nothing has changed")


def _reproduce(stage: str, place: str, environment: dict[str, str], *, why: str) -> State[Any]:
    """Let DVC restore or run the stage, and say which of them it was."""
    logger.info("%s %s: %s", place, stage, why)
    started_at = time.perf_counter()
    lock_before = content_of_lock()
    output = StageOutput(LOGS / f"{stage}.log", send=get_line_logger().info)
    try:
        with show_in_prefect(stage):
            code = reproduce(stage, environment=environment, hear=output.hear)
    finally:
        output.close()
    if code != 0:
        return _make_failed_state(stage, *explain_failure(output.last_lines, code))
    if not any(line.startswith("Running stage ") for line in output.first_lines):
        logger.info("%s %s: cached, restored from the DVC cache", place, stage)
        return Completed(name="Cached", message="restored from the DVC cache")
    seconds = time.perf_counter() - started_at
    remember_seconds(stage, seconds)
    if content_of_lock() == lock_before:
        logger.info("%s %s: done in %.1f s, with the same result as before", place, stage, seconds)
        return Completed(name="Unchanged", message=f"ran, because of {why}; same result as before")
    logger.info("%s %s: done in %.1f s", place, stage, seconds)
    return Completed(message=f"ran, because of {why}")


def explain_failure(lines: Iterable[str], dvc_code: int) -> tuple[str, int]:
    """Return the stage's one line and its exit code, read from the last lines that DVC and it have written."""
    lines = list(lines)
    start = max((number for number, line in enumerate(lines) if line.startswith("ERROR:")), default=len(lines))
    complaint = " ".join(lines[start:]).removeprefix("ERROR:").strip()
    exited = re.search(r"exited with (-?\d+)$", complaint)
    if exited is None:
        is_busy = "busy" in complaint or "lock" in complaint
        message = complaint[:_MAX_MESSAGE_CHARACTERS] or f"DVC ended with {dvc_code}"
        return message, ExitCode.RESOURCES if is_busy else 1
    code = int(exited[1])
    said = [line for line in lines[:start] if not line.startswith((*DVC_CHATTER, "WARNING:"))]
    message = said[-1].strip() if said else f"its command exited with {code}"
    return message, code if code >= 0 else 128 - code


def _make_failed_state(stage: str, message: str, exit_code: int) -> State[Any]:
    own_name = stage.partition("@")[0]
    message = message if message.startswith(f"{own_name}:") else f"{stage}: {message}"
    return Failed(message=message, data=int(exit_code))


def _describe_error(error: Exception) -> str:
    line = " ".join(str(error).split())[:_MAX_MESSAGE_CHARACTERS]
    is_without_git = "is not a git repository" in line
    return f"{line}; to work without one: dvc config --local core.no_scm true" if is_without_git else line
