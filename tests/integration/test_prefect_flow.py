"""`python -m flows` on a toy pipeline, with the real DVC and a real Prefect server: order, cache, failures, kills."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from flows.server import find_or_start
from tests.flows.toy_project import ToyProject, living, make_toy_project, wait_for
from tests.integration.prefect_api import Api
from tests.processes import left_of, new_mark, none_left_of

pytestmark = pytest.mark.slow

STAGES = ["fingerprint", "download", "slice", "measure", "train@1proc", "train@2proc", "evaluate", "report", "upload"]
COMMANDS = [*STAGES[:-1], "page", "upload"]


@contextlib.contextmanager
def server_of(toy: ToyProject) -> Iterator[Api]:
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
def home(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path) -> ToyProject:
    """The project that the module's server keeps its database in."""
    return make_toy_project(tmp_path_factory.mktemp("server") / "toy", database=prefect_database)


@pytest.fixture(scope="module")
def api(home: ToyProject) -> Iterator[Api]:
    """One server for the module."""
    with server_of(home) as api:
        yield api


@pytest.fixture(scope="module")
def finished(api: Api, tmp_path_factory: pytest.TempPathFactory, warm: Path) -> ToyProject:
    """A toy project whose flow has run once, from nothing to the end; its processes start at once."""
    toy = make_toy_project(tmp_path_factory.mktemp("finished") / "toy", programs=warm)
    ran = toy.flow(**api.environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["2proc is faster, says the toy", "Report: reports/index.html"]
    return toy


def _flow(toy: ToyProject, api: Api, **extra: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    ran = toy.flow(**api.environment, **extra)
    return ran, api.states(api.last_flow_run())


def test_first_run_runs_every_stage_and_the_second_none_but_leaves_the_report_as_an_artifact_too(
    finished: ToyProject, api: Api
) -> None:
    first = api.states(api.last_flow_run())
    assert list(first) == STAGES
    assert set(first.values()) == {"Completed"}
    assert finished.executed() == COMMANDS
    edges = api.edges(api.last_flow_run())
    assert edges["fingerprint"] == set()
    assert edges["train@2proc"] == edges["measure"] == {"slice"}
    assert edges["evaluate"] == {"train@1proc", "train@2proc"}

    ran, second = _flow(finished, api)
    assert ran.returncode == 0
    assert second == {"fingerprint": "Unchanged", **dict.fromkeys(STAGES[1:], "Cached")}
    assert finished.executed() == ["fingerprint"]
    assert ran.stderr.count(": cached, nothing has changed") == len(STAGES) - 1
    assert api.last_flow_run()["state"]["message"] == "2proc is faster, says the toy"

    run = api.last_flow_run()
    found = api.ask("artifacts/filter", flow_runs={"id": {"any_": [run["id"]]}})
    artifacts = {artifact["key"]: artifact for artifact in found}
    assert set(artifacts) == {"ddp-compare-report"}
    report = artifacts["ddp-compare-report"]
    assert report["data"] == "# The toy's report\n"
    assert report["description"].endswith(f"{finished.folder}/reports/index.html")


def test_changed_parameter_runs_what_depends_on_it_and_put_back_restores(finished: ToyProject, api: Api) -> None:
    finished.executed()
    finished.change("params.yaml", "epochs: 1", "epochs: 2")
    _, states = _flow(finished, api)
    # The reports of both are the same: upload finds nothing new.
    assert [stage for stage in STAGES if states[stage] == "Completed"] == ["train@1proc", "train@2proc", "evaluate"]
    assert finished.executed() == ["fingerprint", "train@1proc", "train@2proc", "evaluate"]

    finished.change("params.yaml", "epochs: 2", "epochs: 1")
    _, states = _flow(finished, api)
    assert [stage for stage in STAGES if states[stage] != "Cached"] == ["fingerprint"]
    assert finished.executed() == ["fingerprint"]
    assert (finished.folder / "data/runs/1proc.txt").read_text() == "1\n"


def test_failing_stage_gives_its_exit_code_and_its_one_line(finished: ToyProject, api: Api) -> None:
    finished.change("dvc.yaml", "data/slices.txt sliced", "data/slices.txt sliced again")
    ran, states = _flow(finished, api, TOY_FAILS="slice:3")
    assert ran.returncode == 3
    assert ran.stderr.splitlines()[-1] == "slice: rows of the toy: got 3; allowed: 4"
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""
    assert states["slice"] == "Failed"
    assert "evaluate" not in states
    run = api.last_flow_run()
    assert (run["state_type"], run["state"]["message"]) == ("FAILED", "slice: rows of the toy: got 3; allowed: 4")


@pytest.fixture(scope="module")
def restored(finished: ToyProject, tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    """A copy of the finished project in which every stage is cached, whatever was changed in it before."""
    folder = tmp_path_factory.mktemp("restored") / "toy"
    subprocess.run(["cp", "-a", finished.folder, folder], check=True)
    toy = ToyProject(folder)
    _repro(toy)
    toy.executed()
    return toy


def _repro(toy: ToyProject) -> None:
    dvc = [sys.executable, "-m", "dvc", "repro", "--quiet"]
    subprocess.run(dvc, cwd=toy.folder, env=toy.environment(), check=True, timeout=300)


@pytest.fixture
def done(restored: ToyProject, tmp_path: Path) -> ToyProject:
    """A copy of it, which no server serves."""
    subprocess.run(["cp", "-a", restored.folder, tmp_path / "toy"], check=True)
    return ToyProject(tmp_path / "toy")


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_reruns_of_what_is_cached_start_no_server_and_leave_nothing_behind(done: ToyProject) -> None:
    mark = new_mark()
    sizes = []
    with none_left_of(mark):
        for _ in range(3):
            ran = done.flow(**mark)
            assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "Report: reports/index.html"), ran.stderr
            assert ran.stderr.count(": cached, nothing has changed") == len(STAGES) - 1
            assert "fingerprint: done, with the same result as before" in ran.stderr
            assert done.executed() == ["fingerprint"]
            sizes.append([_bytes_in(done.folder / name) for name in (".prefect", ".work", "reports", "data")])
        assert left_of(mark) == {}
    assert len({tuple(size) for size in sizes}) == 1, sizes


def test_damaged_database_of_prefect_is_put_aside_in_one_line_and_the_comparison_runs(done: ToyProject) -> None:
    home = done.folder / ".prefect"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    (home / "prefect.db").write_bytes(b"no database " * 1000)
    done.change("params.yaml", "seed: 1", "seed: 99")
    ran = done.flow()
    assert ran.returncode == 0, ran.stderr
    told = [line for line in ran.stderr.splitlines() if "was damaged" in line]
    assert told == [
        "ddp-compare: .prefect/prefect.db was damaged; it is .prefect/prefect.db.damaged now, and Prefect begins a new "
        "one (earlier runs are no longer shown, no result is lost)"
    ]
    assert (home / "prefect.db.damaged").read_bytes().startswith(b"no database ")
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as connection:
        assert connection.execute("select count(*) from flow_run").fetchone() == (1,)


def _list_imports(toy: ToyProject) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run the flow; return how it ended, without what is said of imports, and the packages that it imported."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "flows"],
        cwd=toy.folder, env=toy.environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    imports, said = [], []
    for line in ran.stderr.splitlines():
        (imports if line.startswith("import time:") else said).append(line)
    ran.stderr = "\n".join(said)
    return ran, {line.rpartition("|")[2].strip().partition(".")[0] for line in imports}


def test_rerun_of_what_is_cached_imports_no_prefect(done: ToyProject) -> None:
    ran, imported = _list_imports(done)
    assert ran.returncode == 0
    assert "dvc" in imported
    assert not imported & {"prefect", "torch", "mlflow", "pandas", "sqlalchemy"}


@pytest.mark.parametrize("broken", ["epochs: 0", "epoch: 1"])
def test_bad_params_end_in_one_line_before_anything_is_started_or_imported(tmp_path: Path, broken: str) -> None:
    toy = make_toy_project(tmp_path / "toy")
    toy.change("params.yaml", "epochs: 1", broken)
    before = set(toy.folder.iterdir())
    ran, imported = _list_imports(toy)
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("ddp-compare: params.yaml: train.epoch")
    assert set(toy.folder.iterdir()) == before
    assert "pydantic" in imported
    assert not imported & {"prefect", "dvc", "torch", "mlflow", "pandas", "numpy"}


def _untrained_copy(finished: ToyProject, folder: Path) -> ToyProject:
    """Return a copy of the finished project in which the cells have to be trained again."""
    subprocess.run(["cp", "-a", finished.folder, folder / "toy"], check=True)
    toy = ToyProject(folder / "toy")
    yaml = YAML()
    params = yaml.load(toy.folder / "params.yaml")
    params["train"]["seed"] = 4711
    yaml.dump(params, toy.folder / "params.yaml")
    (toy.folder / "dvc.yaml").write_text((finished.folder / "dvc.yaml").read_text().replace("sliced again", "sliced"))
    return toy


def _start_training(toy: ToyProject) -> list[psutil.Process]:
    """Return every process of a flow whose `train@2proc` has begun."""
    wait_for(lambda: (toy.folder / "slow.txt").exists(), seconds=240, what=f"training runs; said: {toy.output()}")
    wait_for(lambda: (toy.folder / "slow.txt").read_text().count(" "), seconds=60, what="the pids are written")
    pids = [int(pid) for pid in (toy.folder / "slow.txt").read_text().split()]
    return [psutil.Process(pid) for pid in pids]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal_lets_training_save_and_leaves_no_process(
    finished: ToyProject, api: Api, tmp_path: Path, number: int, exit_code: int
) -> None:
    toy = _untrained_copy(finished, tmp_path)
    with toy.running("flows", **api.environment, TOY_IS_SLOW="train@2proc") as flow:
        training = _start_training(toy)
        everything = [*training, *psutil.Process(flow.pid).children(recursive=True)]
        flow.send_signal(number)
        assert flow.wait(timeout=90) == exit_code
    assert (toy.folder / "saved.txt").read_text() == "saved"
    assert "train: saved" in toy.output()
    assert "Traceback" not in toy.output()
    assert living(everything) == []


def test_kill_of_the_flow_leaves_no_process_and_the_next_run_marks_it_as_crashed(
    finished: ToyProject, tmp_path: Path, prefect_database: Path
) -> None:
    toy = _untrained_copy(finished, tmp_path)
    toy.give_database(prefect_database)
    with toy.running("flows", TOY_IS_SLOW="train@2proc") as flow:
        training = _start_training(toy)
        everything = [*training, *psutil.Process(flow.pid).children(recursive=True)]
        assert len(everything) >= 4, "server, DVC, training and its rank"
        flow.kill()
        wait_for(lambda: not living(everything), seconds=60, what="every process is gone, which by itself stays")
    toy.executed()

    with server_of(toy) as api:
        ran, states = _flow(toy, api)
        assert ran.returncode == 0, ran.stderr
        assert "had been killed; it is now marked as crashed" in ran.stderr
        assert toy.executed() == ["fingerprint", "train@2proc"]
        assert states["train@1proc"] == "Cached"
        runs = api.ask("flow_runs/filter", sort="START_TIME_DESC")
        assert [run["state_type"] for run in runs[:2]] == ["COMPLETED", "CRASHED"]
        assert "RUNNING" not in {run["state_type"] for run in runs}
        assert api.states(runs[1])["train@2proc"] == "Crashed"
