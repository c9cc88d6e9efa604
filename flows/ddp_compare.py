"""The flow: the stages of dvc.yaml in their order, each a task run, and the report as an artifact."""

from pathlib import Path
from typing import Any

from prefect import State, flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import deployment
from prefect.states import Completed, Failed

from flows.dvc_stage import StageFailed, run_stage
from flows.rebench import new_trial, require_no_regression
from flows.run_log import set_up_flow_log
from flows.running import counted_as_running, end_abandoned_runs
from tasks.params import Params, load_params
from tasks.stage.failure import StageError
from tasks.stage.parent import end_with_parent

REPORT = Path("reports/report.md")
RESULTS = Path("reports/results.json")
REPORT_PAGE = Path("reports/index.html")


@flow(name="ddp-compare", persist_result=False)
def ddp_compare(rebench: bool = False) -> State[Any]:
    """Is N-GPU training faster than 1-GPU training, by how much, and is it still the same training?

    `rebench` measures the speed again even if nothing has changed, and fails if a cell has become slower.
    """
    set_up_flow_log()
    if deployment.id:  # started by a worker, whose death would leave us unattended
        end_with_parent()
    end_abandoned_runs()
    with counted_as_running():
        try:
            run_stages(load_params(), rebench=rebench)
            if rebench:
                require_no_regression(RESULTS)
        except (StageError, StageFailed) as failure:
            return Failed(message=str(failure), data=int(failure.exit_code))
    return Completed(message="every stage is up to date")


def run_stages(params: Params, *, rebench: bool = False) -> None:
    """Bring every stage up to date, in order; stop at the first that fails."""
    run_stage("fingerprint", environment=new_trial() if rebench else None)
    run_stage("download", retries=2)
    run_stage("slice")
    run_stage("measure")
    for cell in params.cells:
        run_stage(f"train@{cell}")
    run_stage("evaluate")
    run_stage("report")
    show_report()
    run_stage("upload", retries=2)


def show_report() -> None:
    """Put the report into the Prefect UI, where every run shows the one that it left."""
    create_markdown_artifact(
        REPORT.read_text(encoding="utf-8"),
        key="ddp-compare-report",
        description=f"With its charts: {REPORT_PAGE.resolve()}",
    )
