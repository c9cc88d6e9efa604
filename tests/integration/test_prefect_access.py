"""Who may use the Prefect servers of this project, tried from outside: another user, another site, a run with more."""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flows.toy_project import ToyProject, free_port, make_toy_project, wait_for
from tests.integration.prefect_api import Api
from tests.processes import left_of, new_mark, none_left_of

pytestmark = pytest.mark.slow

NOBODY = 65534
_POST = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
try:
    print(urllib.request.urlopen(request, timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path) -> ToyProject:
    """A toy project in which every stage is cached, so that a run takes no time."""
    toy = make_toy_project(tmp_path_factory.mktemp("access") / "toy", database=prefect_database)
    dvc = [sys.executable, "-m", "dvc", "repro", "--quiet"]
    subprocess.run(dvc, cwd=toy.folder, env=toy.environment(), check=True, timeout=300)
    return toy


@pytest.fixture(scope="module")
def mark() -> dict[str, str]:
    return new_mark()


@contextlib.contextmanager
def serving(toy: ToyProject, mark: dict[str, str], **environment: str) -> Iterator[Api]:
    """Serve the toy project."""
    with none_left_of(mark), toy.running("flows.serve", **mark, **environment) as process:
        wait_for(lambda: "serving ddp-" in toy.output() or process.poll(), seconds=300, what="the runner has started")
        assert process.poll() is None, toy.output()
        yield Api.of_served(toy.folder)


@pytest.fixture(scope="module")
def served(toy: ToyProject, mark: dict[str, str]) -> Iterator[Api]:
    with serving(toy, mark) as api:
        yield api


def _copy(toy: ToyProject, folder: Path, database: Path) -> ToyProject:
    """Return the project anew, with nothing of Prefect's but this database."""
    shutil.copytree(toy.folder, folder, symlinks=True, ignore=shutil.ignore_patterns(".prefect"))
    copy = ToyProject(folder)
    copy.give_database(database)
    return copy


def _status(api: Api, path: str, body: Any = None, **headers: str) -> int:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{api.url}/{path}", content, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _deployment(api: Api) -> str:
    return next(str(found["id"]) for found in api.ask("deployments/filter") if found["name"] == "ddp-compare")


def _ended(api: Api, run: dict[str, Any]) -> dict[str, Any]:
    wait_for(
        lambda: api.read(f"flow_runs/{run['id']}")["state_type"] in ("COMPLETED", "FAILED", "CRASHED"),
        seconds=240, what="the run has ended",
    )  # fmt: skip
    found: dict[str, Any] = api.read(f"flow_runs/{run['id']}")
    return found


def test_another_user_reads_and_starts_nothing(toy: ToyProject, served: Api, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to become another user")
    os.chmod(toy.folder.parent, 0o755)
    evil = {"job_variables": {"command": f"touch {tmp_path}/ran"}, "state": {"type": "SCHEDULED"}}
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    posted = subprocess.run(
        [*as_nobody, "/usr/bin/env", "python3", "-c", _POST,
         f"{served.url}/deployments/{_deployment(served)}/create_flow_run", json.dumps(evil)],
        cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert posted.stdout.strip() in ("401", "403")
    for file in ("server.env", "prefect.db"):
        read = subprocess.run([*as_nobody, "cat", toy.folder / ".prefect" / file], capture_output=True, check=False)
        assert read.returncode != 0, file
    assert [run for run in served.ask("flow_runs/filter") if not run["auto_scheduled"]] == []


def test_without_the_credentials_every_question_but_that_for_health_is_refused(served: Api) -> None:
    assert _status(served, "health") == 200
    assert _status(served, "admin/settings") == 401
    assert _status(served, "csrf-token?client=00000000-0000-0000-0000-000000000000") == 401
    assert _status(served, "deployments/filter", {}) in (401, 403)
    assert _status(served, "admin/settings", Authorization=served.headers["Authorization"]) == 200


def test_page_of_another_site_is_refused_even_with_the_credentials(served: Api) -> None:
    served.ask("deployments/filter")
    own = served.url.removesuffix("/api")
    assert _status(served, "deployments/filter", {}, **served.headers, Origin=own) == 200
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example:80"}, {"Origin": "null"}):
        assert _status(served, "deployments/filter", {}, **served.headers, **headers) == 403, headers
    without_token = {name: value for name, value in served.headers.items() if "Csrf" not in name}
    assert _status(served, "deployments/filter", {}, **without_token) == 403


def test_run_that_brings_a_command_or_an_environment_runs_the_comparison_alone(
    toy: ToyProject, served: Api, tmp_path: Path
) -> None:
    toy.executed()
    brought = {"command": f"touch {tmp_path}/ran", "env": {"TOY_FAILS": "fingerprint:3"}, "working_dir": "/"}
    scheduled = {"type": "SCHEDULED"}
    run = served.ask(f"deployments/{_deployment(served)}/create_flow_run", state=scheduled, job_variables=brought)
    assert _ended(served, run)["state_type"] == "COMPLETED"
    assert toy.executed() == ["fingerprint"]
    run = served.ask(f"deployments/{_deployment(served)}/create_flow_run", state=scheduled, parameters={"cmd": "id"})
    assert _ended(served, run)["state_type"] in ("FAILED", "CRASHED")
    assert toy.executed() == []
    assert list(tmp_path.iterdir()) == []


def test_every_socket_is_on_loopback_and_the_secret_is_in_private_files_and_no_command_line(
    toy: ToyProject, served: Api, mark: dict[str, str]
) -> None:
    processes = [psutil.Process(pid) for pid in left_of(mark)]
    assert len(processes) >= 3, "serve, server and runner"
    sockets = [at for process in processes for at in process.net_connections("inet") if at.status == psutil.CONN_LISTEN]
    assert sockets
    assert {at.laddr.ip for at in sockets} == {"127.0.0.1"}

    secret = served.environment["PREFECT_API_AUTH_STRING"].partition(":")[2]
    assert len(secret) >= 20
    assert not [words for words in left_of(mark).values() if secret in words]
    home = toy.folder / ".prefect"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    found = [file for file in toy.folder.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
    assert sorted(file.name for file in found) == ["login", "server.env"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in found} == {0o600}


def test_login_is_of_one_project_and_stays_and_a_killed_server_leaves_none_that_is_sent(
    toy: ToyProject, served: Api, tmp_path: Path, prefect_database: Path
) -> None:
    copy = _copy(toy, tmp_path / "toy", prefect_database)
    port, mark = free_port(), new_mark()
    with serving(copy, mark, PREFECT_SERVER_API_PORT=str(port)) as api:
        assert api.url == f"http://127.0.0.1:{port}/api"
        typed = ["prefect", "deployment", "inspect", "ddp-compare"]
        inspected = subprocess.run(typed, cwd=copy.folder, env=copy.environment(), capture_output=True, timeout=240)
        assert inspected.returncode == 0, "the command line finds port and credentials"

        other = _copy(toy, tmp_path / "other", prefect_database)
        refused = subprocess.run(
            [sys.executable, "-m", "flows.serve"], cwd=other.folder, capture_output=True, text=True, timeout=240,
            env=other.environment(PREFECT_SERVER_API_PORT=str(port)),
        )  # fmt: skip
        (line,) = refused.stderr.splitlines()
        assert refused.returncode == 4
        assert line == (
            f"serve: port {port} is not to be had (Address already in use); free it, or choose another one: "
            "PREFECT_SERVER_API_PORT=4201 make serve"
        )

        (server,) = [pid for pid, words in left_of(mark).items() if "flows.server" in words]
        os.kill(server, 9)
        wait_for(lambda: not left_of(mark), seconds=90, what="serve and runner have ended")
        said = copy.output().splitlines()
        assert said[-1] == "serve: the Prefect server ended by itself"
        assert len(said) <= 5, "one line, not the errors of the runner"
    assert not (copy.folder / ".prefect/server.env").exists()
    with serving(copy, mark, PREFECT_SERVER_API_PORT=str(port)) as again:
        assert served.url != again.url
        assert again.environment["PREFECT_API_AUTH_STRING"] == api.environment["PREFECT_API_AUTH_STRING"]
        assert served.environment["PREFECT_API_AUTH_STRING"] != api.environment["PREFECT_API_AUTH_STRING"]
        for pid in left_of(mark):
            os.kill(pid, 9)
    assert (copy.folder / ".prefect/server.env").exists()
    alone = subprocess.run(
        ["prefect", "deployment", "run", "ddp-compare"], cwd=copy.folder, env=copy.environment(), capture_output=True,
        text=True, timeout=240,
    )  # fmt: skip
    assert (alone.returncode, alone.stdout) == (4, "")
    # That of the other project listens where prefect.toml says, and is not ours.
    (line,) = alone.stderr.splitlines()
    assert line.startswith("ddp-compare: no Prefect server of this folder answers at http://127.0.0.1:")
    assert "type `make serve` in another terminal" in line


def test_temporary_server_of_a_comparison_is_closed_in_the_same_way(
    toy: ToyProject, tmp_path: Path, prefect_database: Path
) -> None:
    mark = new_mark()
    toy = _copy(toy, tmp_path / "toy", prefect_database)
    toy.change("params.yaml", "seed: 1", "seed: 5")
    (toy.folder / "slow.txt").unlink(missing_ok=True)
    with none_left_of(mark), toy.running("flows", TOY_IS_SLOW="train@2proc", **mark):
        wait_for(lambda: (toy.folder / "slow.txt").exists(), seconds=240, what=f"it trains; said: {toy.output()}")
        servers = [pid for pid, words in left_of(mark).items() if "flows.server" in words]
        (at,) = [at for at in psutil.Process(servers[0]).net_connections("inet") if at.status == psutil.CONN_LISTEN]
        assert at.laddr.ip == "127.0.0.1"
        secrets = Path(f"/proc/{servers[0]}/environ").read_text().split("\0")
        api = Api(dict(variable.split("=", 1) for variable in secrets if "=" in variable))
        assert _status(api, "admin/settings") == 401
        assert _status(api, "flow_runs/filter", {}) in (401, 403)
        assert _status(api, "flow_runs/filter", {}, Origin="http://evil.example") == 403
        assert [run["state_type"] for run in api.ask("flow_runs/filter", limit=1)] == ["RUNNING"]
        # The stage and what it starts have nothing that opens the server.
        stage = int((toy.folder / "slow.txt").read_text().split()[0])
        assert api.environment["PREFECT_API_AUTH_STRING"] not in Path(f"/proc/{stage}/environ").read_text()
        (toy.folder / "go_on.txt").touch()
