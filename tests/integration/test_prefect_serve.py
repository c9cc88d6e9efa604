"""`python -m flows.serve`: server, deployment and worker come up, runs start as a user types it, all ends together."""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest

from tests.flows.toy_project import ToyProject, living, make_toy_project, wait_for
from tests.integration.prefect_api import Api

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Served:
    """A toy project that is being served, with every process that belongs to it."""

    toy: ToyProject
    api: Api
    process: subprocess.Popen[str]

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as somebody types it in the project's folder, in the activated environment."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.toy.folder,
            env=self.toy.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    toy = make_toy_project(tmp_path_factory.mktemp("served") / "toy")
    # Once, in the next minute that begins when the worker is up for sure: 30 to 90 s from now.
    minute = (datetime.now(UTC) + timedelta(seconds=90)).minute
    toy.change(
        "prefect.yaml", "active: true\n", f'active: true\n      - cron: "{minute} * * * *"\n        timezone: UTC\n'
    )
    url = (toy.folder / "prefect.toml").read_text().split('url = "')[1].split('"')[0]
    with toy.running("flows.serve", TOY_IS_SLOW="train@2proc") as process:
        wait_for(lambda: "started!" in toy.output() or process.poll(), seconds=120, what="the worker has started")
        assert process.poll() is None, toy.output()
        yield Served(toy, Api(url), process)


def _runs(served: Served, state: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = served.api.ask("flow_runs/filter", flow_runs={"state": {"type": {"any_": [state]}}})
    return runs


def _is_one_overdue(served: Served) -> bool:
    """Return True if a planned run has not started 5 s after its time, longer than the worker needs to look."""
    latest = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
    return any(run["expected_start_time"] < latest for run in _runs(served, "SCHEDULED"))


def _wait_for_training(served: Served) -> list[int]:
    """Return the pids of training and of its rank once they run."""
    slow = served.toy.folder / "slow.txt"
    wait_for(
        lambda: slow.exists() and " " in slow.read_text(),
        seconds=60,
        what=f"a run trains; said: {served.toy.output()}",
    )
    return [int(pid) for pid in slow.read_text().split()]


def test_deployment_has_a_weekly_schedule_whose_runs_are_planned_and_a_limit_of_one(served: Served) -> None:
    (deployment,) = served.api.ask("deployments/filter")
    assert deployment["name"] == "ddp-compare"
    plans = {plan["schedule"]["cron"]: plan["parameters"] for plan in deployment["schedules"] if plan["active"]}
    assert plans["0 3 * * 0"] == {"rebench": True}
    assert deployment["parameters"] == {}
    assert deployment["global_concurrency_limit"]["limit"] == 1
    assert deployment["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    # With SQLAlchemy 2.1 none were ever planned, without a word.
    sundays = [run for run in _runs(served, "SCHEDULED") if run["expected_start_time"][11:19] == "03:00:00"]
    assert {datetime.fromisoformat(run["expected_start_time"]).weekday() for run in sundays} == {6}


def test_second_server_of_the_project_is_refused_in_one_line(served: Served) -> None:
    refused = served.type("python -m flows.serve")
    assert refused.returncode == 4
    assert refused.stderr == (f"serve: this project is served already, by process {served.process.pid}; end it first\n")


def test_bare_name_typed_literally_starts_a_run(served: Served) -> None:
    typed = served.type("prefect deployment run ddp-compare")
    assert typed.returncode == 0, typed.stderr
    assert "'ddp-compare/ddp-compare'" in typed.stdout
    _wait_for_training(served)
    assert len(_runs(served, "RUNNING")) == 1
    assert served.type("prefect deployment inspect ddp-compare/ddp-compare").returncode == 0


def test_rebench_is_a_parameter_that_a_run_is_given(served: Served) -> None:
    typed = served.type("prefect deployment run ddp-compare --param rebench=true")
    assert typed.returncode == 0, typed.stderr
    runs = served.api.ask("flow_runs/filter", flow_runs={"state": {"type": {"not_any_": ["CANCELLED"]}}})
    (asked,) = [run for run in runs if not run["auto_scheduled"] and run["parameters"]]
    assert asked["parameters"] == {"rebench": True}
    served.api.ask(f"flow_runs/{asked['id']}/set_state", state={"type": "CANCELLED"}, force=True)


def test_cron_starts_a_run_which_waits_for_the_one_before(served: Served) -> None:
    training = _wait_for_training(served)
    (first,) = _runs(served, "RUNNING")
    wait_for(lambda: _is_one_overdue(served), seconds=120, what="the time of the cron has come")
    assert [run["id"] for run in _runs(served, "RUNNING")] == [first["id"]]

    (served.toy.folder / "slow.txt").unlink()
    served.api.ask(f"flow_runs/{first['id']}/set_state", state={"type": "CANCELLING"})
    wait_for(
        lambda: served.api.read(f"flow_runs/{first['id']}")["state_type"] == "CANCELLED",
        seconds=30,
        what=f"the run is cancelled; said: {served.toy.output()}",
    )
    assert living(training) == []
    assert (served.toy.folder / "saved.txt").exists()
    _wait_for_training(served)
    (second,) = _runs(served, "RUNNING")
    # On a slow machine the cron may have been first.
    assert {first["auto_scheduled"], second["auto_scheduled"]} == {True, False}


def test_end_of_the_server_ends_the_run_and_everything_it_started(served: Served) -> None:
    everything = psutil.Process(served.process.pid).children(recursive=True)
    assert len(everything) >= 6, "server, worker, flow, DVC, training and its rank"
    (served.toy.folder / "saved.txt").unlink()
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.process.wait(timeout=40) == 0
    assert living(everything) == []
    assert (served.toy.folder / "saved.txt").exists()
