"""The flow: the stages of dvc.yaml in their order, each a task run, and the report as an artifact.

A stage that DVC finds nothing to do for is `Cached`.
"""

import base64
import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.lock import LockError
from prefect import State, Task, flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment
from prefect.states import Completed, Failed

from flows.output import StageOutput
from flows.pipeline import (
    StageFailed,
    explain_complaint,
    explain_failure,
    list_changes,
    list_stages,
    list_upstream,
    read_lock,
    remember_seconds,
    reproduce,
)
from flows.recording import (
    end_killed_runs,
    get_line_logger,
    is_recorded,
    mark_running,
    name_run,
    set_up_flow_log,
    tolerate_outage,
)
from tasks.fingerprint import TRIAL
from tasks.params import Params, load_params
from tasks.params.editing import use_preset
from tasks.process.failure import STORAGE_ERRORS, ExitCode, StageError
from tasks.process.lock import lock_workspace
from tasks.process.stopping import end_with_parent
from tasks.reporting.history import History

logger = logging.getLogger(__name__)

REPORT = Path("reports/report.md")
RESULTS = Path("reports/results.json")
REPORT_PAGE = Path("reports/index.html")
_LOGS = Path(".work/logs")
_DAY = 24 * 3600.0
_RETRY_SECONDS = [5.0, 20.0]
_MAX_REASONS = 4

outcome: list[State[Any] | None] = []
"""What the comparison of this process came to, known here even where Prefect's server is gone by then; None before."""


def get_exit_code(state: State[Any]) -> int:
    """Return the exit code that a failed state of ours carries, 1 for any other."""
    code = state.result(raise_on_failure=False)
    return code if isinstance(code, int) else 1


def _may_retry(_task: Task[Any, Any] | None, _run: object, state: State[Any]) -> bool:
    return state.is_failed() and get_exit_code(state) == ExitCode.RESOURCES


# Prefect's own cache stays off: it said "Cached" for outputs that had been deleted. Without tags: a task run with one
# asks the server for a slot before it starts, and fails if that is gone.
@task(task_run_name="{stage}", timeout_seconds=_DAY, cache_policy=NO_CACHE, persist_result=False)
def dvc_stage(stage: str, place: str, environment: Mapping[str, str]) -> State[Any]:
    """Let DVC restore or run the stage if anything has changed; its command gets `environment` on top of ours.

    `place` says in its lines which of the stages it is, such as "4 of 9". After its time it is asked to save and ended.
    """
    try:
        return _bring_up_to_date(stage, place, environment)
    except (DvcException, OSError) as error:
        if isinstance(error, OSError) and error.errno not in STORAGE_ERRORS:
            raise
        words, code = explain_complaint(str(error))
        words = "another DVC works in this folder: " * isinstance(error, LockError) + words
        words += "; to work without one: dvc config --local core.no_scm true" * ("is not a git repository" in words)
        return _make_failed_state(stage, words, code)


def _bring_up_to_date(stage: str, place: str, environment: Mapping[str, str]) -> State[Any]:
    reasons = list_changes(stage)[stage]
    if not reasons:
        logger.info("%s %s: cached, nothing has changed", place, stage)
        return Completed(name="Cached", message="nothing has changed")
    more = len(reasons) - _MAX_REASONS
    why = ", ".join(reasons[:_MAX_REASONS]) + (f" and {more} more" if more > 0 else "")
    logger.info("%s %s: %s", place, stage, why)
    started_at, lock_before = time.perf_counter(), read_lock()
    with contextlib.closing(StageOutput(_LOGS / f"{stage}.log", send=get_line_logger().info)) as output:
        code = reproduce(stage, environment=environment, on_output=output.write)
    if code != 0:
        return _make_failed_state(stage, *explain_failure(output.last_lines, code))
    if not any(line.startswith("Running stage ") for line in output.first_lines):
        logger.info("%s %s: cached, restored from the DVC cache", place, stage)
        return Completed(name="Cached", message="restored from the DVC cache")
    seconds = time.perf_counter() - started_at
    remember_seconds(stage, seconds)
    is_same = read_lock() == lock_before
    same = ", with the same result as before" * is_same
    logger.info("%s %s: done in %.1f s%s", place, stage, seconds, same)
    return Completed(name="Unchanged" if is_same else "Completed", message=f"ran: {why}{same}")


dvc_training = dvc_stage.with_options(timeout_seconds=30 * _DAY)
dvc_transfer = dvc_stage.with_options(retries=2, retry_delay_seconds=_RETRY_SECONDS, retry_condition_fn=_may_retry)
"""Retries go to failures that another try may mend, such as an unreachable service, never to a bad input."""


def run_stage(
    this: Task[Any, Any], stage: str, *, place: str, environment: Mapping[str, str], upstream: Sequence[State[Any]]
) -> State[Any]:
    """Bring the stage up to date as a task run of its name, and return its state; raises StageFailed.

    `this`: one of the tasks above. `upstream`: how the stages ended that it depends on, from which the graph of the
    run has its edges. Without a server the same happens in this process.
    """
    if is_recorded():
        state = this(stage, place, environment, return_state=True, wait_for=upstream)
    else:
        for wait in [*_RETRY_SECONDS[: this.retries], None]:
            state = this.fn(stage, place, environment)
            if wait is None or not _may_retry(None, None, state):
                break
            time.sleep(wait)
    if state.name == "TimedOut":
        hours = (this.timeout_seconds or 0.0) / 3600
        raise StageFailed(f"{stage}: ended after {hours:g} hours; what it saved is kept", ExitCode.RESOURCES)
    if state.is_failed():
        raise StageFailed(str(state.message), get_exit_code(state))
    return state


def _make_failed_state(stage: str, message: str, exit_code: int) -> State[Any]:
    own_name = stage.partition("@")[0]
    message = message if message.startswith(f"{own_name}:") else f"{stage}: {message}"
    return Failed(message=message, data=int(exit_code))


@flow(name="ddp-compare", persist_result=False)
def ddp_compare(rebench: bool = False, preset: str | None = None) -> State[Any]:
    """Is N-GPU training faster than 1-GPU training, by how much, and is it still the same training?

    `rebench` measures the speed again even if nothing has changed, and fails if a cell has become slower. `preset`, the
    name of a file in presets/, is made the active comparison first, as `make use` does.
    """
    set_up_flow_log()
    is_served, parent = bool(deployment.id), os.getppid()
    if is_served:  # started by a runner, whose death would leave us unattended
        end_with_parent()
    # First: a run that is tried again has the id of the one before it.
    mark_running()
    with tolerate_outage("runs that were killed may still be shown as running"):
        end_killed_runs()
    outcome.append(None)
    try:
        outcome[-1] = compare(rebench=rebench, preset=preset)
    finally:
        if is_served and os.getppid() != parent:
            # The training has saved and ended. Prefect would ask a server for a minute that mostly ended with the
            # runner; the next start marks this run as crashed.
            os._exit(ExitCode.PREEMPTED)
    assert outcome[-1] is not None
    return outcome[-1]


def compare(*, rebench: bool, preset: str | None = None) -> State[Any]:
    """Bring the comparison up to date, as the flow does, also where there is no Prefect server to record it."""
    set_up_flow_log()
    try:
        with lock_workspace("a flow run of Prefect"):
            if preset is not None:
                logger.info("%s", use_preset(preset))
            params = load_params()
            if is_recorded():
                name_run(params.name)
            run_stages(params, rebench=rebench)
            results = json.loads(RESULTS.read_text(encoding="utf-8"))
            if is_recorded():
                # Such as "proven": a list of runs shows tags, and the sentence not.
                name_run(params.name, results["state"])
    except StageError as failure:
        return Failed(message=str(failure), data=int(failure.exit_code))
    return Completed(message=results["verdict"])


def run_stages(params: Params, *, rebench: bool = False) -> None:
    """Bring every stage up to date, in order; stop at the first that fails.

    Another try may mend a transfer. A failed measurement is a finding, and a training goes on at the next run. A
    regression does not keep the report from being uploaded, and is reported whatever comes of that: its record is the
    one that the next `rebench` compares with.
    """
    stages, ended = list_stages(params.cells), dict[str, State[Any]]()
    needed: dict[str, list[str]] = {}
    with contextlib.suppress(DvcException):  # the first stage meets it again, and says what it means
        needed = list_upstream()

    def run(this: Task[Any, Any], stage: str, **environment: str) -> None:
        upstream = [ended[name] for name in needed.get(stage, ()) if name in ended]
        place = f"{stages.index(stage) + 1} of {len(stages)}"
        ended[stage] = run_stage(this, stage, place=place, environment=environment, upstream=upstream)

    # Any text that was not there before has the speed measured again.
    run(dvc_stage, "fingerprint", **({TRIAL: datetime.now(UTC).isoformat()} if rebench else {}))
    run(dvc_transfer, "download")
    run(dvc_stage, "slice")
    run(dvc_stage, "measure")
    for cell in params.cells:
        run(dvc_training, f"train@{cell}")
    run(dvc_training, "evaluate")
    run(dvc_stage, "report")
    if is_recorded():
        show_report()
    try:
        if rebench:
            require_no_regression(RESULTS)
    except StageFailed as slower:
        try:
            run(dvc_transfer, "upload")
        except StageFailed as failure:
            raise StageFailed(f"{slower}; {failure}", slower.exit_code) from None
        raise
    run(dvc_transfer, "upload")


def require_no_regression(results: Path) -> None:
    """Say what changed since the last comparable record; raises StageFailed in one line if a cell became slower."""
    content = json.loads(results.read_text(encoding="utf-8")).get("history")
    if content is None:
        return
    history = History.model_validate(content)
    logger.info("rebench: %s", history.summary)
    if (regression := history.regression) is not None:
        raise StageFailed(f"rebench: {regression}", ExitCode.REGRESSED)


def show_report() -> None:
    """Put the report into the Prefect UI, each chart that it links to inside it: the page of Prefect has no files."""

    def show(link: re.Match[str]) -> str:
        if not (file := REPORT.parent / link["file"]).is_file():
            return link[0]
        image = base64.b64encode(file.read_bytes()).decode()
        return f"![{link['title']}](data:image/svg+xml;base64,{image}) {link['title']}"

    chart = r"\[(?P<title>[^\]]*)\]\((?P<file>charts/[a-z_]+\.svg)\)"
    with tolerate_outage(f"the report is in {REPORT_PAGE} alone"):
        create_markdown_artifact(
            re.sub(chart, show, REPORT.read_text(encoding="utf-8")),
            key="ddp-compare-report",
            description=f"The page, on the machine that made it: {REPORT_PAGE.resolve()}",
        )
