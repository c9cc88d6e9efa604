"""The flow: the stages of dvc.yaml in their order, each a task run, and the report as an artifact."""

import base64
import contextlib
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from prefect import State, flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import deployment
from prefect.states import Completed, Failed

from flows.dvc_stage import StageFailed, run_stage
from flows.live_runs import end_abandoned_runs, mark_running, name_run
from flows.outage import is_recorded, tolerate_outage
from flows.pipeline import list_stages, list_upstream
from flows.rebench import make_trial_environment, require_no_regression
from flows.run_log import set_up_flow_log
from tasks.params import Params, load_params
from tasks.params.presets import use_preset
from tasks.process.failure import ExitCode, StageError
from tasks.process.lock import lock_workspace
from tasks.process.parent import end_with_parent

REPORT = Path("reports/report.md")
RESULTS = Path("reports/results.json")
REPORT_PAGE = Path("reports/index.html")

outcome: list[State[Any] | None] = []
"""What the comparison of this process came to, known here even where Prefect's server is gone by then; None before."""


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
    with tolerate_outage("runs that were killed may still be shown as running"):
        end_abandoned_runs()
    mark_running()
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
                logging.getLogger(__name__).info("%s", use_preset(preset))
            params = load_params()
            if is_recorded():
                name_run(params.name, "ddp-compare", params.name)
            run_stages(params, rebench=rebench)
            if rebench:
                require_no_regression(RESULTS)
    except (StageError, StageFailed) as failure:
        return Failed(message=str(failure), data=int(failure.exit_code))
    # What a list of runs shows beside each.
    return Completed(message=json.loads(RESULTS.read_text(encoding="utf-8"))["verdict"])


def run_stages(params: Params, *, rebench: bool = False) -> None:
    """Bring every stage up to date, in order; stop at the first that fails.

    Another try may mend a transfer. A failed measurement is a finding, and a training goes on at the next run.
    """
    stages, ended = list_stages(params.cells), dict[str, State[Any]]()
    needed: dict[str, list[str]] = {}
    with contextlib.suppress(DvcException):  # the first stage meets it again, and says what it means
        needed = list_upstream()

    def run(stage: str, **options: Any) -> None:
        upstream = [ended[one] for one in needed.get(stage, ()) if one in ended]
        place = f"{stages.index(stage) + 1} of {len(stages)}"
        ended[stage] = run_stage(stage, place=place, upstream=upstream, **options)

    run("fingerprint", hours=1, environment=make_trial_environment() if rebench else None)
    run("download", hours=24, retries=2)
    run("slice", hours=24)
    run("measure", hours=24)
    for cell in params.cells:
        run(f"train@{cell}", hours=30 * 24)
    run("evaluate", hours=48)
    run("report", hours=1)
    if is_recorded():
        show_report()
    run("upload", hours=24, retries=2)


def show_report() -> None:
    """Put the report with its charts into the Prefect UI, where every run shows the one that it left."""
    with tolerate_outage(f"the report is in {REPORT_PAGE} alone"):
        create_markdown_artifact(
            show_charts(REPORT.read_text(encoding="utf-8"), REPORT.parent),
            key="ddp-compare-report",
            description=f"The page, on the machine that made it: {REPORT_PAGE.resolve()}",
        )


def show_charts(markdown: str, folder: Path) -> str:
    """Return the report with each chart that it links to as an image inside it: the page of Prefect has no files."""

    def show(link: re.Match[str]) -> str:
        if not (file := folder / link["file"]).is_file():
            return link[0]
        image = base64.b64encode(file.read_bytes()).decode()
        return f"![{link['title']}](data:image/svg+xml;base64,{image}) {link['title']}"

    return re.sub(r"\[(?P<title>[^\]]*)\]\((?P<file>charts/[a-z_]+\.svg)\)", show, markdown)
