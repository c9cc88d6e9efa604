"""The flow when something around it goes away: the shell, DVC, the Prefect server, the time it was given."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.toy_project import BIN, PROJECT, ToyProject, free_port, make_toy_project, wait_for
from tests.flows.toy_training import ToyTraining, make_toy_training
from tests.integration.prefect_api import Api
from tests.integration.test_prefect_flow import server_of
from tests.processes import find, left_of, new_mark, none_left_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path) -> ToyProject:
    """A toy project in which everything is cached but the training of 2proc and what comes after."""
    toy = make_toy_project(tmp_path_factory.mktemp("trouble") / "toy", database=prefect_database)
    dvc = [sys.executable, "-m", "dvc", "repro", "--quiet", "train@1proc", "measure"]
    subprocess.run(dvc, cwd=toy.folder, env=toy.environment(), check=True, timeout=300)
    return toy


@pytest.fixture(scope="module")
def training(toy: ToyProject, tmp_path_factory: pytest.TempPathFactory) -> ToyTraining:
    return make_toy_training(toy, tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def api(toy: ToyProject) -> Iterator[Api]:
    """One server for the module, on the project's own database."""
    with server_of(toy) as api:
        yield api


def test_kill_of_dvc_ends_the_training_and_a_second_comparison_is_refused_meanwhile(
    toy: ToyProject, training: ToyTraining, api: Api
) -> None:
    mark = new_mark()
    training.forget()
    with none_left_of(mark), toy.running("flows", **api.environment, **training.environment, **mark) as flow:
        training.wait_for_step(toy)
        second = toy.flow()
        assert second.returncode == 4
        (line,) = second.stderr.splitlines()
        assert line.startswith(
            f"ddp-compare: a comparison runs in this folder already: make compare, pid {flow.pid} on "
        )
        assert ", since 20" in line
        seen = training.last_step()
        os.kill(find(mark, "flows.child"), signal.SIGKILL)
        ranks = [pid for pid, words in left_of(mark).items() if "flows" not in words]
        wait_for(lambda: not set(ranks) & set(left_of(mark)), seconds=30, what="nobody is left of the training")
        assert flow.wait(timeout=60) not in (0, None)
        assert training.saved_step() >= seen
        assert left_of(mark) == {}
    assert api.last_flow_run()["state_type"] == "FAILED"


def test_kill_of_the_shell_that_typed_make_compare_leaves_nobody(
    toy: ToyProject, training: ToyTraining, api: Api
) -> None:
    mark = new_mark()
    training.forget()
    shutil.copy(PROJECT / "Makefile", toy.folder / "Makefile")
    (toy.folder / ".venv").symlink_to(BIN.parent)
    environment = toy.environment(**api.environment, **training.environment, **mark)
    with none_left_of(mark), (toy.folder / "output.txt").open("w") as output:
        # What .ready stands for is made already.
        typed = "make -o .venv/.ready compare; true"
        shell = subprocess.Popen(
            ["env", "--default-signal=HUP", "bash", "-c", typed], cwd=toy.folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        seen = training.wait_for_step(toy)
        shell.kill()
        shell.wait()
        wait_for(lambda: not left_of(mark), seconds=30, what=f"nobody is left of {left_of(mark)}")
    assert training.saved_step() >= seen
    assert api.last_flow_run()["state_type"] == "CRASHED"


def test_flow_that_loses_its_server_finishes_and_the_next_run_tells_prefect(toy: ToyProject) -> None:
    mark = new_mark()
    toy.change("params.yaml", "seed: 1", "seed: 77")
    (toy.folder / "slow.txt").unlink(missing_ok=True)
    gone = f"http://127.0.0.1:{free_port()}/api"
    environment = {"PREFECT_API_URL": gone, "PREFECT_CLIENT_MAX_RETRIES": "1", "TOY_IS_SLOW": "train@2proc"}
    with none_left_of(mark), toy.running("flows", **environment, **mark) as flow:
        wait_for(lambda: (toy.folder / "slow.txt").exists(), seconds=240, what=f"it trains; said: {toy.output()}")
        os.kill(find(mark, "flows.server"), signal.SIGKILL)
        (toy.folder / "go_on.txt").touch()
        assert flow.wait(timeout=240) == 0, toy.output()
    said = toy.output()
    assert "no Prefect server answers at PREFECT_API_URL; this run is recorded here alone" in said
    assert "the Prefect server does not answer" in said
    assert "2proc is faster, says the toy" in said
    assert "Traceback" not in said
    with server_of(toy) as api:
        assert api.last_flow_run()["state_type"] == "RUNNING"
        assert toy.flow(**api.environment).returncode == 0
        states = [run["state_type"] for run in api.ask("flow_runs/filter", sort="START_TIME_DESC", limit=2)]
        assert states == ["COMPLETED", "CRASHED"]


_PROXIES = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environment", "num_runs"),
    [(_PROXIES, 1), ({"PREFECT_API_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:////proc/none.db", **_PROXIES}, 0)],
    ids=["no proxy can be reached", "no server can start"],
)
def test_nothing_around_prefect_decides_whether_a_comparison_runs(
    toy: ToyProject, environment: dict[str, str], num_runs: int
) -> None:
    toy.executed()
    params = toy.folder / "params.yaml"
    params.write_text(re.sub(r"seed: \d+", f"seed: {80 + num_runs}", params.read_text()))
    ran = toy.flow(**environment, NO_PROXY="example.org")
    assert ran.returncode == 0, ran.stderr
    assert "train@2proc" in toy.executed()
    assert ran.stderr.count("Prefect records nothing of it") == 1 - num_runs
    assert "Traceback" not in ran.stderr
