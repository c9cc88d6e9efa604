"""`python -m flows.serve`: server, deployments and runner come up, runs start as a user types it, all ends together.

And the flow when something around it goes away: the shell, DVC, the Prefect server.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from tests.flows.toy_project import BIN, PROJECT, ToyProject, free_port, living, make_toy_project, wait_for
from tests.flows.toy_training import ToyTraining, make_toy_training
from tests.integration.prefect_api import Api
from tests.integration.test_prefect_flow import server_of
from tests.processes import find, left_of, new_mark, none_left_of

pytestmark = pytest.mark.slow

_SECONDS_TO_BE_GONE = 60.0
"""By itself a training goes on for many minutes, and who serves it for ever."""
_SOON = {"PREFECT_RUNNER_POLL_FREQUENCY": "1", "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5"}
"""Server and runner look around as often, in place of every 60 and 10 seconds."""
_NOBODY = 65534
_POST = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
try:
    print(urllib.request.urlopen(request, timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@dataclass(frozen=True)
class Served:
    """A toy project that is being served and that trains for real, with every process that belongs to it."""

    toy: ToyProject
    training: ToyTraining
    api: Api
    process: subprocess.Popen[str]
    mark: dict[str, str]

    def type(self, command, **environment):
        """Run a command as somebody types it in the project's folder, in the activated environment."""
        return subprocess.run(
            ["bash", "-c", command], cwd=self.toy.folder, env=self.toy.environment(**environment), capture_output=True,
            text=True, timeout=240,
        )  # fmt: skip

    def runs(self, state):
        """Return the flow runs of that type of state."""
        return self.api.ask("flow_runs/filter", flow_runs={"state": {"type": {"any_": [state]}}})

    def create_run(self, **told):
        """Start a run as the UI does; return it."""
        (one,) = [one for one in self.api.ask("deployments/filter") if one["name"] == "ddp-compare"]
        return self.api.ask(f"deployments/{one['id']}/create_flow_run", state={"type": "SCHEDULED"}, **told)

    def wait_for_running(self):
        """Return the run whose ranks train, as soon as they do."""
        self.training.wait_for_step(self.toy)
        (run,) = self.runs("RUNNING")
        return run

    def require_gone(self):
        """Fail unless nobody is left soon."""
        wait_for(lambda: not left_of(self.mark), seconds=_SECONDS_TO_BE_GONE, what="nobody is left")


@contextlib.contextmanager
def _serving(toy, training):
    mark = new_mark()
    training.forget()
    with none_left_of(mark), toy.running("flows.serve", **training.environment, **_SOON, **mark) as process:
        wait_for(lambda: "serving ddp-" in toy.output() or process.poll(), seconds=300, what="the runner has started")
        assert process.poll() is None, toy.output()
        yield Served(toy, training, Api.of_served(toy.folder), process, mark)


@pytest.fixture(scope="module")
def project_to_serve(tmp_path_factory, prefect_database):
    """A toy project that trains for real, once what comes before is cached."""
    folder = tmp_path_factory.mktemp("served")
    toy = make_toy_project(folder / "toy", database=prefect_database)
    subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--quiet", "train@1proc", "measure"],
        cwd=toy.folder, env=toy.environment(), check=True, timeout=300,
    )  # fmt: skip
    return toy, make_toy_training(toy, folder)


@pytest.fixture(scope="module")
def served(project_to_serve):
    with _serving(*project_to_serve) as served:
        yield served


def test_two_deployments_one_on_demand_and_one_by_cron_that_measures_again(served):
    deployments = {deployment["name"]: deployment for deployment in served.api.ask("deployments/filter")}
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


def test_another_user_reads_and_starts_nothing(served, tmp_path):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to become another user")
    folder = served.toy.folder
    os.chmod(folder.parent, 0o755)
    evil = {"job_variables": {"command": f"touch {tmp_path}/ran"}, "state": {"type": "SCHEDULED"}}
    deployment = next(str(one["id"]) for one in served.api.ask("deployments/filter") if one["name"] == "ddp-compare")
    as_nobody = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    posted = subprocess.run(
        [*as_nobody, "/usr/bin/env", "python3", "-c", _POST,
         f"{served.api.url}/deployments/{deployment}/create_flow_run", json.dumps(evil)],
        cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert posted.stdout.strip() in ("401", "403")
    for file in ("server.env", "prefect.db"):
        read = subprocess.run([*as_nobody, "cat", folder / ".prefect" / file], capture_output=True, check=False)
        assert read.returncode != 0, file
    assert [run for run in served.api.ask("flow_runs/filter") if not run["auto_scheduled"]] == []


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


def test_a_second_server_of_the_project_or_of_its_port_is_refused_in_one_line(served, tmp_path, prefect_database):
    refused = served.type("python -m flows.serve")
    (line,) = refused.stderr.splitlines()
    assert refused.returncode == 4
    assert line.startswith(f"serve: this project is served already: make serve, pid {served.process.pid} on ")
    port = served.api.url.removesuffix("/api").rpartition(":")[2]
    other = make_toy_project(tmp_path / "other", database=prefect_database)

    def serve(**environment):
        return subprocess.run(
            [sys.executable, "-m", "flows.serve"], cwd=other.folder, capture_output=True, text=True, timeout=240,
            env=other.environment(**environment),
        )  # fmt: skip

    refused = serve(PREFECT_SERVER_API_PORT=port)
    (line,) = refused.stderr.splitlines()
    assert refused.returncode == 4
    assert line.startswith(f"serve: port {port} is not to be had (Address already in use); free it, or ")
    other.change("prefect.yaml", "0 3 * * 0", "0 25 * * 0")
    refused = serve()
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.splitlines()[-1].startswith('serve: prefect.yaml: ValueError: Invalid cron string: "0 25 ')


def test_run_that_brings_a_command_or_an_environment_runs_the_comparison_alone(served, tmp_path):
    served.toy.executed()
    brought = {"command": f"touch {tmp_path}/ran", "env": {"TOY_FAILS": "fingerprint:3"}, "working_dir": "/"}
    run = served.create_run(parameters={"cmd": "id"})
    wait_for(
        lambda: served.api.read(f"flow_runs/{run['id']}")["state_type"] in ("FAILED", "CRASHED"),
        seconds=240, what="a run with another parameter has failed",
    )  # fmt: skip
    assert served.toy.executed() == []
    run = served.create_run(job_variables=brought)
    assert served.wait_for_running()["id"] == run["id"]
    assert served.toy.executed() == ["fingerprint", "train@2proc"]
    assert list(tmp_path.iterdir()) == []


def test_a_bare_name_is_a_run_that_waits(served):
    assert len(served.runs("RUNNING")) == 1
    # Its runs come while this one trains, one every five seconds.
    often = [{"schedule": {"cron": "* * * * * */5", "timezone": "UTC"}, "active": True}]
    (rebench,) = [one for one in served.api.ask("deployments/filter") if one["name"] == "rebench"]
    assert served.api.post(f"deployments/{rebench['id']}/schedules", often)
    typed = served.type("prefect deployment run ddp-compare")
    assert typed.returncode == 0, typed.stderr
    wait_for(
        lambda: [one["auto_scheduled"] for one in served.runs("SCHEDULED")].count(False) == 1,
        seconds=60,
        what="it waits",
    )
    refused = served.type("python -m flows")
    (line,) = refused.stderr.splitlines()
    assert refused.returncode == 4
    assert line.startswith("ddp-compare: a comparison runs in this folder already: a flow run of Prefect, pid ")


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
    seen = served.training.last_step()
    served.api.ask(f"flow_runs/{first['id']}/set_state", state={"type": "CANCELLING"})
    wait_for(lambda: not living(everything), seconds=_SECONDS_TO_BE_GONE, what="the whole tree of the run has ended")
    assert served.training.saved_step() >= seen > 0
    served.training.forget()
    served.training.wait_for_step(served.toy)
    assert served.api.read(f"flow_runs/{first['id']}")["state_type"] == "CANCELLED"
    assert len(served.runs("RUNNING")) == 1


def test_end_of_the_server_ends_the_run_and_everything_it_started(served):
    seen = served.training.wait_for_step(served.toy)
    assert len(left_of(served.mark)) >= 9, "serve, server, runner, flow, DVC, shell, stage, torchrun and two ranks"
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.process.wait(timeout=120) == 0
    assert left_of(served.mark) == {}
    assert served.training.saved_step() >= seen


def test_kill_of_server_runner_or_serve_leaves_nobody_and_no_run_that_seems_to_run_and_the_login_stays(
    project_to_serve,
):
    toy, _ = project_to_serve
    with _serving(*project_to_serve) as served:
        os.kill(find(served.mark, "flows.server"), signal.SIGKILL)
        served.require_gone()
        assert toy.output().splitlines()[-1] == "serve: the Prefect server ended by itself"
        assert not (toy.folder / ".prefect/server.env").exists()
        login = served.api.environment["PREFECT_API_AUTH_STRING"]
    with _serving(*project_to_serve) as served:
        assert served.api.environment["PREFECT_API_AUTH_STRING"] == login
        served.create_run()
        killed = served.wait_for_running()
        os.kill(find(served.mark, "flows.runner"), signal.SIGKILL)
        served.require_gone()
        assert served.process.wait(timeout=60) == 4
        assert "the Prefect runner ended by itself" in toy.output()
    with _serving(*project_to_serve) as served:
        assert served.api.read(f"flow_runs/{killed['id']}")["state_type"] == "CRASHED"
        served.create_run()
        served.wait_for_running()
        served.process.kill()
        served.require_gone()
    assert (toy.folder / ".prefect/server.env").exists()
    alone = served.type("prefect deployment run ddp-compare")
    (line,) = alone.stderr.splitlines()
    assert (alone.returncode, alone.stdout) == (4, "")
    assert line.startswith("ddp-compare: no Prefect server of this folder answers at http://127.0.0.1:")


def test_kill_of_dvc_or_of_the_shell_ends_the_training_and_a_second_comparison_is_refused_meanwhile(project_to_serve):
    toy, training = project_to_serve
    mark = new_mark()
    training.forget()
    with server_of(toy) as api:
        with none_left_of(mark), toy.running("flows", **api.environment, **training.environment, **mark) as flow:
            seen = training.wait_for_step(toy)
            second = toy.flow()
            assert second.returncode == 4
            (line,) = second.stderr.splitlines()
            assert line.startswith(
                f"ddp-compare: a comparison runs in this folder already: make compare, pid {flow.pid} on "
            )
            os.kill(find(mark, "flows.child"), signal.SIGKILL)
            assert flow.wait(timeout=60) not in (0, None)
            wait_for(lambda: not left_of(mark), seconds=30, what="nobody is left of the training")
        assert training.saved_step() >= seen
        assert api.last_flow_run()["state_type"] == "FAILED"

        training.forget()
        shutil.copy(PROJECT / "Makefile", toy.folder / "Makefile")
        (toy.folder / ".venv").symlink_to(BIN.parent)
        environment = toy.environment(**api.environment, **training.environment, **mark)
        with none_left_of(mark), (toy.folder / "output.txt").open("w") as output:
            # What .ready stands for is made already.
            shell = subprocess.Popen(
                ["env", "--default-signal=HUP", "bash", "-c", "make -o .venv/.ready compare; true"], cwd=toy.folder,
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            seen = training.wait_for_step(toy)
            shell.kill()
            shell.wait()
            wait_for(lambda: not left_of(mark), seconds=30, what=f"nobody is left of {left_of(mark)}")
        assert training.saved_step() >= seen
        assert api.last_flow_run()["state_type"] == "CRASHED"


def test_flow_that_loses_its_server_behind_dead_proxies_finishes_and_the_next_run_tells_prefect(project_to_serve):
    toy, _ = project_to_serve
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
    toy.change("params.yaml", "seed: 78", "seed: 79")
    with server_of(toy) as api:
        assert api.last_flow_run()["state_type"] == "RUNNING"
        assert toy.flow(**api.environment).returncode == 0
        states = [run["state_type"] for run in api.ask("flow_runs/filter", sort="START_TIME_DESC", limit=2)]
        assert states == ["COMPLETED", "CRASHED"]
