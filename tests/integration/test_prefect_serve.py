"""`python -m flows.serve`: server, deployments and runner come up, runs start as a user types it, all ends together.

And the flow when the Prefect server goes away.
"""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, write_device
from tests.flows.toy_project import PROJECT, ToyProject, free_port, living, make_toy_project, wait_for
from tests.integration.prefect_api import Api
from tests.processes import find, left_of, new_mark, none_left_of
from tests.tiny import make_config, make_slice
from tests.training.conftest import events_in
from training.state.receipt import find_receipt_problem

pytestmark = pytest.mark.slow

_SECONDS_TO_BE_GONE = 60.0
"""By itself a training goes on for many minutes, and who serves it for ever."""
_STEPS = ".work/runs/2proc/steps.jsonl"
_SOON = {"PREFECT_RUNNER_POLL_FREQUENCY": "1", "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5"}
"""Server and runner look around as often, in place of every 60 and 10 seconds."""


@dataclass(frozen=True)
class Served:
    """A toy project that is being served and that trains for real, with every process that belongs to it."""

    toy: ToyProject
    api: Api
    process: subprocess.Popen
    mark: dict[str, str]

    def type(self, command, **environment):
        """Run a command as somebody types it in the project's folder, in the activated environment."""
        return self.toy.run("bash", "-c", command, **environment)

    def runs(self, state):
        """Return the flow runs of that type of state."""
        return self.api.ask("flow_runs/filter", flow_runs={"state": {"type": {"any_": [state]}}})

    def create_run(self, **told):
        """Start a run as the UI does; return it."""
        deployment = self.list_deployments()["ddp-compare"]["id"]
        return self.api.ask(f"deployments/{deployment}/create_flow_run", state={"type": "SCHEDULED"}, **told)

    def list_deployments(self):
        """Return them by name."""
        return {one["name"]: one for one in self.api.ask("deployments/filter")}

    def last_step(self):
        """Return the last step that the ranks have told of."""
        return max((event.get("step", 0) for event in events_in(self.toy.folder / _STEPS)), default=0)

    def wait_for_running(self):
        """Return the run whose ranks train, as soon as they do."""
        wait_for(lambda: self.last_step() >= 3, seconds=150, what=f"ranks train; said: {self.toy.output()}")
        (run,) = self.runs("RUNNING")
        return run

    def saved_step(self):
        """Return the step of the newest checkpoint, after looking at every byte of it."""
        newest = max((self.toy.folder / _STEPS).parent.glob("partial/*/step-*"))
        assert find_receipt_problem(newest, fingerprint=newest.parent.name) is None
        return int(newest.name.removeprefix("step-"))

    def require_gone(self):
        """Fail unless nobody is left soon."""
        wait_for(lambda: not left_of(self.mark), seconds=_SECONDS_TO_BE_GONE, what="nobody is left")


@contextlib.contextmanager
def _serving(toy):
    mark, stage = new_mark(), PROJECT / "tests/tasks/process/rank_stage.py"
    trains = {"TOY_RUNS": f"train@2proc:{stage} {toy.folder.parent}/2proc.json", "PYTHONPATH": str(PROJECT)}
    (toy.folder / _STEPS).unlink(missing_ok=True)
    with none_left_of(mark), toy.running("flows.serve", **trains, **_SOON, **mark) as process:
        wait_for(lambda: "serving ddp-" in toy.output() or process.poll(), seconds=300, what="the runner has started")
        assert process.poll() is None, toy.output()
        yield Served(toy, Api.of_served(toy.folder), process, mark)


@pytest.fixture(scope="module")
def project_to_serve(tmp_path_factory, prefect_database):
    """A toy project that trains for real, once what comes before is cached: longer than any test waits.

    Its layers sleep (tests/emulator/): whoever looks at servers and runs meanwhile has the cores.
    """
    folder = tmp_path_factory.mktemp("served")
    toy = make_toy_project(folder / "toy")
    toy.give_database(prefect_database)
    toy.repro("train@1proc", "measure")
    device = EmulatedDevice(forward_ms=10)
    config = make_config(
        (toy.folder / _STEPS).parent, write_device(folder / "model", device),
        [make_slice(folder / "rows", num_rows=20_000)], cell="2proc", strategy="ddp", world_size=2,
        global_batch_size=4, micro_batch_size=1, workload=WORKLOAD,
    )  # fmt: skip
    (folder / "2proc.json").write_text(json.dumps(config))
    (toy.folder / _STEPS).parents[1].mkdir(parents=True, exist_ok=True)
    return toy


@pytest.fixture(scope="module")
def served(project_to_serve):
    with _serving(project_to_serve) as served:
        yield served


def _require_refused(ran, said):
    """Fail unless it ended with 4, and one line that begins so."""
    (line,) = ran.stderr.splitlines()
    assert (ran.returncode, line[: len(said)]) == (4, said)


def test_two_deployments_one_on_demand_and_one_by_cron_that_measures_again(served):
    deployments = served.list_deployments()
    assert deployments["ddp-compare"]["schedules"] == []
    assert deployments["rebench"]["parameters"] == {"rebench": True}
    for deployment in deployments.values():
        assert deployment["global_concurrency_limit"]["limit"] == 1
        assert deployment["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    (snippet,) = re.findall(r"^```python\n(.*?)^```", (PROJECT / "docs/schedule.md").read_text(), flags=re.M | re.S)
    typed = served.type('python -c "$SNIPPET"', SNIPPET=snippet, NOTIFY_URL="http://127.0.0.1:9/hook")
    assert typed.returncode == 0, typed.stderr
    assert [one["name"] for one in served.api.ask("automations/filter")] == ["ddp-compare failed"]
    # With SQLAlchemy 2.1 none were ever planned, without a word. The server plans them in turns of its own.
    wait_for(lambda: _weekdays_at_three(served), seconds=240, what="runs are planned at 03:00")
    assert _weekdays_at_three(served) == {6}


def _weekdays_at_three(served):
    starts = [datetime.fromisoformat(run["expected_start_time"]) for run in served.runs("SCHEDULED")]
    return {start.weekday() for start in starts if (start.hour, start.minute) == (3, 0)}


def test_no_stranger_and_no_page_of_another_site_is_answered_and_the_secret_is_in_private_files_alone(served):
    processes = left_of(served.mark)
    assert len(processes) >= 3, "serve, server and runner"
    served.api.require_closed_to_others(*processes)
    secret = served.api.environment["PREFECT_API_AUTH_STRING"].partition(":")[2]
    assert len(secret) >= 20
    assert not [words for words in processes.values() if secret in words]
    home = served.toy.folder / ".prefect"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    found = [file for file in served.toy.folder.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
    assert sorted(file.name for file in found) == ["login", "server.env"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in found} == {0o600}


def test_a_second_server_of_the_project_or_of_its_port_is_refused_in_one_line(served, tmp_path):
    refused = served.type("python -m flows.serve")
    _require_refused(refused, f"serve: this project is served already: make serve, pid {served.process.pid} on ")
    port = served.api.url.removesuffix("/api").rpartition(":")[2]
    other = make_toy_project(tmp_path / "other")
    refused = other.run("python", "-m", "flows.serve", PREFECT_SERVER_API_PORT=port)
    _require_refused(refused, f"serve: port {port} is not to be had (Address already in use); free it, or ")


def test_run_that_brings_a_command_or_an_environment_runs_the_comparison_alone(served, tmp_path):
    served.toy.executed()
    brought = {"command": f"touch {tmp_path}/ran", "env": {"TOY_FAILS": "fingerprint:3"}, "working_dir": "/"}
    run = served.create_run(job_variables=brought)
    assert served.wait_for_running()["id"] == run["id"]
    assert served.toy.executed() == ["fingerprint", "train@2proc"]
    assert list(tmp_path.iterdir()) == []


def test_a_bare_name_is_a_run_that_waits(served):
    assert len(served.runs("RUNNING")) == 1
    # Its runs come while this one trains, one every five seconds.
    often = [{"schedule": {"cron": "* * * * * */5", "timezone": "UTC"}, "active": True}]
    assert served.api.post(f"deployments/{served.list_deployments()['rebench']['id']}/schedules", often)
    typed = served.type("prefect deployment run ddp-compare")
    assert typed.returncode == 0, typed.stderr
    wait_for(
        lambda: [one["auto_scheduled"] for one in served.runs("SCHEDULED")].count(False) == 1,
        seconds=60,
        what="it waits",
    )
    said = "ddp-compare: a comparison runs in this folder already: a flow run of Prefect, pid "
    _require_refused(served.type("python -m flows"), said)


def _overdue(served):
    """Return the planned runs that have not started 5 s after their time, longer than the runner needs to look."""
    latest = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
    return [run for run in served.runs("SCHEDULED") if run["expected_start_time"] < latest]


def test_cron_waits_for_the_run_before_which_is_cancelled_saved_and_gone(served):
    (first,) = served.runs("RUNNING")
    wait_for(lambda: _overdue(served), seconds=240, what="the time of the cron has come")
    assert [run["id"] for run in served.runs("RUNNING")] == [first["id"]], "another deployment, the same machine"

    flow = psutil.Process(find(served.mark, "multiprocessing.spawn"))
    everything = [flow, *flow.children(recursive=True)]
    assert len(everything) >= 6, "flow, DVC, shell or stage, torchrun and two ranks"
    seen = served.last_step()
    served.api.ask(f"flow_runs/{first['id']}/set_state", state={"type": "CANCELLING"})
    wait_for(lambda: not living(everything), seconds=_SECONDS_TO_BE_GONE, what="the whole tree of the run has ended")
    assert served.saved_step() >= seen > 0
    (served.toy.folder / _STEPS).unlink()
    served.wait_for_running()
    assert served.api.read(f"flow_runs/{first['id']}")["state_type"] == "CANCELLED"
    assert len(served.runs("RUNNING")) == 1


def test_end_of_the_server_ends_the_run_and_everything_it_started(served):
    served.wait_for_running()
    seen = served.last_step()
    assert len(left_of(served.mark)) >= 9, "serve, server, runner, flow, DVC, shell, stage, torchrun and two ranks"
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.process.wait(timeout=120) == 0
    assert left_of(served.mark) == {}
    assert served.saved_step() >= seen


def test_kill_of_server_runner_or_serve_leaves_nobody_and_no_run_that_seems_to_run_and_the_login_stays(
    project_to_serve,
):
    toy = project_to_serve
    with _serving(project_to_serve) as served:
        os.kill(find(served.mark, "flows.server"), signal.SIGKILL)
        served.require_gone()
        assert toy.output().splitlines()[-1] == "serve: the Prefect server ended by itself"
        assert not (toy.folder / ".prefect/server.env").exists()
        login = served.api.environment["PREFECT_API_AUTH_STRING"]
    with _serving(project_to_serve) as served:
        assert served.api.environment["PREFECT_API_AUTH_STRING"] == login
        served.create_run()
        killed = served.wait_for_running()
        os.kill(find(served.mark, "flows.runner"), signal.SIGKILL)
        served.require_gone()
        assert served.process.wait(timeout=60) == 4
        assert "the Prefect runner ended by itself" in toy.output()
    with _serving(project_to_serve) as served:
        assert served.api.read(f"flow_runs/{killed['id']}")["state_type"] == "CRASHED"
        served.create_run()
        served.wait_for_running()
        served.process.kill()
        served.require_gone()
    assert (toy.folder / ".prefect/server.env").exists()
    said = "ddp-compare: no Prefect server of this folder answers at http://127.0.0.1:"
    _require_refused(served.type("prefect deployment run ddp-compare"), said)


def test_flow_that_loses_its_server_behind_dead_proxies_or_has_none_finishes(project_to_serve):
    toy = project_to_serve
    mark = new_mark()
    toy.change("params.yaml", "seed: 1", "seed: 77")
    (toy.folder / "slow.txt").unlink(missing_ok=True)
    gone = f"http://127.0.0.1:{free_port()}/api"
    environment = {"PREFECT_API_URL": gone, "PREFECT_CLIENT_MAX_RETRIES": "1", "TOY_IS_SLOW": "train@2proc"}
    environment |= {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9", "NO_PROXY": "example.org"}
    with none_left_of(mark), toy.running("flows", **environment, **mark) as flow:
        wait_for(lambda: (toy.folder / "slow.txt").exists(), seconds=240, what=f"it trains; said: {toy.output()}")
        os.kill(find(mark, "flows.server"), signal.SIGKILL)
        (toy.folder / "go_on.txt").touch()
        assert flow.wait(timeout=240) == 0, toy.output()
    said = toy.output()
    assert "the Prefect server does not answer" in said
    assert "2proc is faster, says the toy" in said
    assert "Traceback" not in said
    # No server can start on such a database.
    toy.change("params.yaml", "seed: 77", "seed: 78")
    ran = toy.flow(PREFECT_API_DATABASE_CONNECTION_URL="sqlite+aiosqlite:////proc/none.db")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("Prefect records nothing of it") == 1
