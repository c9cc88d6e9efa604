"""`python -m flows` on a toy pipeline, with the real DVC and a real Prefect server: order, cache, failures, kills."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from flows.server import _set_damaged_aside, find_or_start
from tests.flows.toy_project import ToyProject, living, make_toy_project, wait_for
from tests.integration.prefect_api import Api
from tests.integration.test_cache import STAGES
from tests.processes import left_of, new_mark, none_left_of

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def server_of(toy):
    """A temporary server on the project's own database, as `python -m flows` starts one for itself."""
    before, folder = dict(os.environ), Path.cwd()
    try:
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            del os.environ[name]
        os.chdir(toy.folder)
        server = find_or_start(temporary=True)
        api = Api(os.environ)
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
    try:
        server.wait_until_ready()
        yield api
    finally:
        server.end()


@pytest.fixture(scope="module")
def api(tmp_path_factory, prefect_database):
    """One server for the module."""
    with server_of(make_toy_project(tmp_path_factory.mktemp("server") / "toy", database=prefect_database)) as api:
        yield api


@pytest.fixture(scope="module")
def finished(api, tmp_path_factory):
    """A toy project whose flow has run once, from nothing to the end."""
    toy = make_toy_project(tmp_path_factory.mktemp("finished") / "toy")
    ran = toy.flow(**api.environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["", "2proc is faster, says the toy", "Report: reports/index.html"]
    return toy


def _flow(toy, api, **extra):
    ran = toy.flow(**api.environment, **extra)
    return ran, api.states(api.last_flow_run())


def test_first_run_runs_every_stage_and_the_second_none_but_leaves_the_report_as_an_artifact_too(finished, api):
    assert api.states(api.last_flow_run()) == dict.fromkeys(STAGES, "Completed")
    assert finished.executed() == [*STAGES[:-1], "page", "upload"]
    edges = api.edges(api.last_flow_run())
    assert edges["fingerprint"] == set()
    assert edges["train@2proc"] == edges["measure"] == {"slice"}
    assert edges["evaluate"] == {"train@1proc", "train@2proc"}

    ran, second = _flow(finished, api)
    assert ran.returncode == 0
    assert second == {"fingerprint": "Unchanged", **dict.fromkeys(STAGES[1:], "Cached")}
    assert finished.executed() == ["fingerprint"]
    run = api.last_flow_run()
    assert run["state"]["message"] == "2proc is faster, says the toy"
    assert "unproven" in run["tags"]
    (report,) = api.ask("artifacts/filter", flow_runs={"id": {"any_": [run["id"]]}})
    assert (report["key"], report["data"]) == ("ddp-compare-report", "# The toy's report\n")
    assert report["description"].endswith(f"{finished.folder}/reports/index.html")


def test_failing_stage_gives_its_exit_code_and_its_one_line(finished, api):
    line = "slice: rows of the toy: got 3; allowed: 4"
    finished.change("dvc.yaml", "data/slices.txt sliced", "data/slices.txt sliced again")
    try:
        ran, states = _flow(finished, api, TOY_FAILS="slice:3")
    finally:
        finished.change("dvc.yaml", "data/slices.txt sliced again", "data/slices.txt sliced")
    assert (ran.returncode, ran.stdout, ran.stderr.splitlines()[-1]) == (3, "", line)
    assert "Traceback" not in ran.stderr
    assert states["slice"] == "Failed"
    assert "evaluate" not in states
    run = api.last_flow_run()
    assert (run["state_type"], run["state"]["message"]) == ("FAILED", line)


def _list_imports(toy, **extra):
    """Run the flow; return how it ended, without what is said of imports, and the packages that it imported."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "flows"],
        cwd=toy.folder, env=toy.environment(**extra), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    imports, said = [], []
    for line in ran.stderr.splitlines():
        (imports if line.startswith("import time:") else said).append(line)
    ran.stderr = "\n".join(said)
    return ran, {line.rpartition("|")[2].strip().partition(".")[0] for line in imports}


def test_reruns_of_what_is_cached_start_no_server_import_no_prefect_and_leave_nothing_behind(finished, tmp_path):
    done, mark, sizes = _copy(finished, tmp_path), new_mark(), []
    subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--quiet"], cwd=done.folder, env=done.environment(), check=True
    )
    done.executed()
    with none_left_of(mark):
        for _ in range(2):
            ran, imported = _list_imports(done, **mark)
            assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "Report: reports/index.html"), ran.stderr
            assert ran.stderr.count(": cached, nothing has changed") == len(STAGES) - 1
            assert done.executed() == ["fingerprint"]
            folders = (done.folder / name for name in (".prefect", ".work", "reports", "data"))
            sizes.append([sum(file.stat().st_size for file in one.rglob("*") if file.is_file()) for one in folders])
        assert left_of(mark) == {}
    assert sizes[0] == sizes[1]
    assert "dvc" in imported
    assert not imported & {"prefect", "torch", "mlflow", "pandas", "sqlalchemy"}


def test_damaged_database_of_prefect_is_put_aside_in_one_line(tmp_path, capsys, prefect_database):
    database = tmp_path / "prefect.db"
    whole = prefect_database.read_bytes()
    database.write_bytes(whole)
    _set_damaged_aside(database)
    assert (database.is_file(), capsys.readouterr().err) == (True, "")
    damaged = {
        "prefect.db.damaged": b"no database " * 1000,
        "prefect.db.damaged1": whole.replace(b"CREATE TABLE", b"CREA\xfdE TABLE"),
    }
    for aside, content in damaged.items():
        database.write_bytes(content)
        _set_damaged_aside(database)
        assert not database.exists()
        (line,) = capsys.readouterr().err.splitlines()
        assert f"prefect.db was damaged; it is {tmp_path / aside} now" in line
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == damaged


def _copy(finished, folder, **train):
    """Return a copy of the finished project with these values in `train`."""
    subprocess.run(["cp", "-a", finished.folder, folder / "toy"], check=True)
    toy, yaml = ToyProject(folder / "toy"), YAML()
    params = yaml.load(toy.folder / "params.yaml")
    params["train"].update(train)
    yaml.dump(params, toy.folder / "params.yaml")
    return toy


@contextlib.contextmanager
def _training(toy, **extra):
    """Run a flow; yield it, and every process of it, once `train@2proc` has begun."""
    slow = toy.folder / "slow.txt"
    with toy.running("flows", TOY_IS_SLOW="train@2proc", **extra) as flow:
        wait_for(
            lambda: slow.exists() and " " in slow.read_text(), seconds=240, what=f"training runs; said: {toy.output()}"
        )
        own = [psutil.Process(int(pid)) for pid in slow.read_text().split()]
        yield flow, [*own, *psutil.Process(flow.pid).children(recursive=True)]


def _require_saved(toy, api, *, number, exit_code):
    """Send a flow that trains this signal; fail unless the training is saved and nobody is left."""
    (toy.folder / "slow.txt").unlink(missing_ok=True)
    with _training(toy, **api.environment) as (flow, everything):
        flow.send_signal(number)
        assert flow.wait(timeout=90) == exit_code
    assert (toy.folder / "saved.txt").read_text() == "saved"
    assert "Traceback" not in toy.output()
    assert living(everything) == []


def test_ctrl_c_lets_training_save_and_leaves_no_process(finished, api, tmp_path):
    _require_saved(_copy(finished, tmp_path, seed=4711), api, number=signal.SIGINT, exit_code=130)


def test_kill_of_the_flow_leaves_no_process_and_the_next_run_marks_it_as_crashed_and_saves_on_sigterm(
    finished, tmp_path, prefect_database
):
    toy, mark = _copy(finished, tmp_path, seed=4711), new_mark()
    toy.give_database(prefect_database)
    with none_left_of(mark), _training(toy, **mark) as (flow, everything):
        assert len(everything) >= 4, "server, DVC, training and its rank"
        # Its own server is for its own user; what a stage is given of it: tests/flows/test_child.py.
        (server,) = [pid for pid, words in left_of(mark).items() if "flows.server" in words]
        secrets = Path(f"/proc/{server}/environ").read_text().split("\0")
        own = Api(dict(variable.split("=", 1) for variable in secrets if "=" in variable))
        own.require_closed_to_others(server)
        assert [run["state_type"] for run in own.ask("flow_runs/filter", limit=1)] == ["RUNNING"]
        flow.kill()
        wait_for(lambda: not living(everything), seconds=60, what="every process is gone, which by itself stays")
    toy.executed()

    with server_of(toy) as api:
        _require_saved(toy, api, number=signal.SIGTERM, exit_code=75)
        assert "had been killed; it is now marked as crashed" in toy.output()
        assert toy.executed() == ["fingerprint", "train@2proc"]
        last, killed = api.ask("flow_runs/filter", sort="START_TIME_DESC", limit=2)
        assert api.states(last)["train@1proc"] == "Cached"
        assert killed["state_type"] == "CRASHED"
        assert api.states(killed)["train@2proc"] == "Crashed"
