"""`python -m flows.serve`: server, deployments and runner come up, runs start as a user types it, all ends together."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flows.toy_project import ToyProject, living, make_toy_project, wait_for
from tests.flows.toy_training import ToyTraining, make_toy_training
from tests.integration.prefect_api import Api
from tests.processes import find, left_of, new_mark, none_left_of

pytestmark = pytest.mark.slow

_SECONDS_TO_BE_GONE = 60.0
"""By itself a training goes on for many minutes, and who serves it for ever."""


@dataclass(frozen=True)
class Served:
    """A toy project that is being served and that trains for real, with every process that belongs to it."""

    toy: ToyProject
    training: ToyTraining
    api: Api
    process: subprocess.Popen[str]
    mark: dict[str, str]

    def type(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command as somebody types it in the project's folder, in the activated environment."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.toy.folder,
            env=self.toy.environment(**environment),
            capture_output=True,
            text=True,
            timeout=240,
        )

    def runs(self, state: str) -> list[dict[str, Any]]:
        """Return the flow runs of that type of state."""
        runs: list[dict[str, Any]] = self.api.ask("flow_runs/filter", flow_runs={"state": {"type": {"any_": [state]}}})
        return runs

    def start_run(self, *, is_typed: bool = False) -> dict[str, Any]:
        """Start a run as the UI does, or by the command that somebody types; return it once its ranks train."""
        self.training.forget()
        if is_typed:
            typed = self.type("prefect deployment run ddp-compare")
            assert typed.returncode == 0, typed.stderr
        else:
            (one,) = [one for one in self.api.ask("deployments/filter") if one["name"] == "ddp-compare"]
            self.api.ask(f"deployments/{one['id']}/create_flow_run", state={"type": "SCHEDULED"})
        self.training.wait_for_step(self.toy)
        (run,) = self.runs("RUNNING")
        return run

    def require_gone(self) -> None:
        """Fail unless nobody is left soon."""
        wait_for(lambda: not left_of(self.mark), seconds=_SECONDS_TO_BE_GONE, what="nobody is left")


@contextlib.contextmanager
def _serving(toy: ToyProject, training: ToyTraining) -> Iterator[Served]:
    mark = new_mark()
    with none_left_of(mark), toy.running("flows.serve", **training.environment, **mark) as process:
        wait_for(lambda: "serving ddp-" in toy.output() or process.poll(), seconds=300, what="the runner has started")
        assert process.poll() is None, toy.output()
        yield Served(toy, training, Api.of_served(toy.folder), process, mark)


@pytest.fixture(scope="module")
def project_to_serve(
    tmp_path_factory: pytest.TempPathFactory, prefect_database: Path
) -> tuple[ToyProject, ToyTraining]:
    """A toy project that trains for real, once what comes before is cached."""
    folder = tmp_path_factory.mktemp("served")
    toy = make_toy_project(folder / "toy", database=prefect_database)
    subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--quiet", "train@1proc", "measure"],
        cwd=toy.folder, env=toy.environment(), check=True, timeout=300,
    )  # fmt: skip
    return toy, make_toy_training(toy, folder)


@pytest.fixture(scope="module")
def served(project_to_serve: tuple[ToyProject, ToyTraining]) -> Iterator[Served]:
    with _serving(*project_to_serve) as served:
        yield served


def test_two_deployments_one_on_demand_and_one_by_cron_that_measures_again(served: Served) -> None:
    deployments = {deployment["name"]: deployment for deployment in served.api.ask("deployments/filter")}
    assert set(deployments) == {"ddp-compare", "rebench"}
    on_demand, rebench = deployments["ddp-compare"], deployments["rebench"]
    # Both stand in the form of the UI.
    assert (on_demand["schedules"], on_demand["parameters"]) == ([], {"rebench": False, "preset": None})
    assert [plan["schedule"]["cron"] for plan in rebench["schedules"] if plan["active"]] == ["0 3 * * 0"]
    assert rebench["parameters"] == {"rebench": True}
    for deployment in deployments.values():
        assert deployment["global_concurrency_limit"]["limit"] == 1
        assert deployment["concurrency_options"]["collision_strategy"] == "ENQUEUE"
        assert "ddp-compare" in deployment["tags"]
    # With SQLAlchemy 2.1 none were ever planned, without a word. The server plans them in turns of its own.
    wait_for(lambda: _weekdays_at_three(served), seconds=240, what="runs are planned at 03:00")
    assert _weekdays_at_three(served) == {6}


def _weekdays_at_three(served: Served) -> set[int]:
    starts = [datetime.fromisoformat(run["expected_start_time"]) for run in served.runs("SCHEDULED")]
    return {start.weekday() for start in starts if (start.hour, start.minute) == (3, 0)}


def test_second_server_of_the_project_is_refused_in_one_line(served: Served) -> None:
    refused = served.type("python -m flows.serve")
    assert refused.returncode == 4
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"serve: this project is served already: make serve, pid {served.process.pid} on ")


def test_bare_name_typed_literally_starts_a_run_whose_progress_is_an_artifact(served: Served) -> None:
    run = served.start_run(is_typed=True)
    # Its runs come while this one trains, one every five seconds.
    often = [{"schedule": {"cron": "* * * * * */5", "timezone": "UTC"}, "active": True}]
    (rebench,) = [one for one in served.api.ask("deployments/filter") if one["name"] == "rebench"]
    assert served.api.post(f"deployments/{rebench['id']}/schedules", often)
    assert served.type("prefect deployment inspect ddp-compare/ddp-compare").returncode == 0
    wait_for(lambda: _progress_of(served, run), seconds=120, what="the progress is shown")
    before = _progress_of(served, run)[0]
    wait_for(lambda: _progress_of(served, run)[0] > before, seconds=120, what="it goes on")
    told = served.training.last_step() / 10_000
    assert 0 < _progress_of(served, run)[0] <= round(100 * told, 1)


def _progress_of(served: Served, run: dict[str, Any]) -> list[float]:
    found = served.api.ask("artifacts/filter", flow_runs={"id": {"any_": [run["id"]]}})
    return [
        artifact["data"] for artifact in found if (artifact["type"], artifact["key"]) == ("progress", "train-2proc")
    ]


def test_comparison_by_hand_is_refused_while_a_run_works_in_the_folder(served: Served) -> None:
    refused = served.type("python -m flows")
    assert refused.returncode == 4
    (line,) = refused.stderr.splitlines()
    assert line.startswith("ddp-compare: a comparison runs in this folder already: a flow run of Prefect, pid ")


def _overdue(served: Served) -> list[dict[str, Any]]:
    """Return the planned runs that have not started 5 s after their time, longer than the runner needs to look."""
    latest = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
    return [run for run in served.runs("SCHEDULED") if run["expected_start_time"] < latest]


def test_cron_waits_for_the_run_before_which_is_cancelled_saved_and_gone(served: Served) -> None:
    (first,) = served.runs("RUNNING")
    wait_for(lambda: _overdue(served), seconds=240, what="the time of the cron has come")
    assert [run["id"] for run in served.runs("RUNNING")] == [first["id"]], "another deployment, the same machine"

    flow = psutil.Process(find(served.mark, "multiprocessing.spawn"))
    everything = [flow, *flow.children(recursive=True)]
    assert len(everything) >= 6, "flow, DVC, shell or stage, torchrun and two ranks"
    seen = served.training.last_step()
    served.api.ask(f"flow_runs/{first['id']}/set_state", state={"type": "CANCELLING"})
    wait_for(lambda: not living(everything), seconds=_SECONDS_TO_BE_GONE, what="the whole tree of the run has ended")
    assert served.training.saved_step() >= seen > 0
    served.training.forget()
    served.training.wait_for_step(served.toy)
    assert served.api.read(f"flow_runs/{first['id']}")["state_type"] == "CANCELLED"
    (second,) = served.runs("RUNNING")
    assert (second["auto_scheduled"], second["parameters"]) == (True, {"rebench": True})


def test_end_of_the_server_ends_the_run_and_everything_it_started(served: Served) -> None:
    seen = served.training.wait_for_step(served.toy)
    assert len(left_of(served.mark)) >= 9, "serve, server, runner, flow, DVC, shell, stage, torchrun and two ranks"
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.process.wait(timeout=120) == 0
    assert left_of(served.mark) == {}
    assert served.training.saved_step() >= seen


def test_kill_of_the_runner_or_of_serve_leaves_nobody_and_no_run_that_seems_to_run(
    project_to_serve: tuple[ToyProject, ToyTraining],
) -> None:
    with _serving(*project_to_serve) as served:
        assert served.runs("RUNNING") == [], "what the server before left was told as crashed"
        killed = served.start_run()
        os.kill(find(served.mark, "flows.runner"), signal.SIGKILL)
        served.require_gone()
        assert served.process.wait(timeout=60) == 4
        assert "the Prefect runner ended by itself" in served.toy.output()
    with _serving(*project_to_serve) as served:
        assert served.api.read(f"flow_runs/{killed['id']}")["state_type"] == "CRASHED"
        served.start_run()
        served.process.kill()
        served.require_gone()
