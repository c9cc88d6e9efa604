"""`python -m flows` on a toy pipeline, with the real DVC and a real Prefect server: order, cache, failures, kills."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from flows.server import _set_damaged_aside, find_or_start
from tests.canaries import SECRETS, WORD, files_with_a_secret
from tests.flows.toy_project import ToyProject, living, make_toy_project, wait_for
from tests.integration.prefect_api import Api
from tests.integration.test_cache import STAGES
from tests.processes import left_of, new_mark, none_left_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api(tmp_path_factory, prefect_database):
    """A temporary server on a project's own database, as `python -m flows` starts one for itself."""
    toy, before, folder = make_toy_project(tmp_path_factory.mktemp("server") / "toy"), dict(os.environ), Path.cwd()
    toy.give_database(prefect_database)
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


def test_failing_stage_gives_its_exit_code_and_its_one_line_without_the_secret_that_it_said(finished, api):
    finished.change("dvc.yaml", "data/slices.txt sliced", "data/slices.txt sliced again")
    try:
        ran, states = _flow(finished, api, TOY_FAILS="slice:3", HF_TOKEN=SECRETS["HF_TOKEN"])
    finally:
        finished.change("dvc.yaml", "data/slices.txt sliced again", "data/slices.txt sliced")
    line = "slice: rows of the toy: got hf_***; allowed: 4"
    assert (ran.returncode, ran.stdout, ran.stderr.splitlines()[-1]) == (3, "", line)
    assert "Traceback" not in ran.stderr
    assert states["slice"] == "Failed"
    assert "evaluate" not in states
    run = api.last_flow_run()
    assert (run["state_type"], run["state"]["message"]) == ("FAILED", line)
    said = [one["message"] for one in api.ask("logs/filter", logs={"flow_run_id": {"any_": [run["id"]]}})]
    assert line in said
    assert not [message for message in said if WORD in message]
    assert files_with_a_secret(finished.folder) == []


def test_reruns_of_what_is_cached_start_no_server_import_no_prefect_and_leave_nothing_behind(finished, tmp_path):
    done, mark, sizes = _copy(finished, tmp_path), new_mark(), []
    done.repro()
    done.executed()
    with none_left_of(mark):
        for _ in range(2):
            ran = done.run("python", "-X", "importtime", "-m", "flows", **mark)
            assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "Report: reports/index.html"), ran.stderr
            assert ran.stderr.count(": cached, nothing has changed") == len(STAGES) - 1
            assert done.executed() == ["fingerprint"]
            folders = (done.folder / name for name in (".prefect", ".work", "reports", "data"))
            sizes.append([sum(file.stat().st_size for file in one.rglob("*") if file.is_file()) for one in folders])
        assert left_of(mark) == {}
    assert sizes[0] == sizes[1]
    imported = set(re.findall(r"\| +([a-z]\w*)", ran.stderr))
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


def _require_saved(toy, flow, everything, *, number, exit_code):
    """Send a flow that trains this signal; fail unless the training is saved and nobody is left."""
    flow.send_signal(number)
    assert flow.wait(timeout=90) == exit_code
    assert (toy.folder / "saved.txt").read_text() == "saved"
    assert "Traceback" not in toy.output()
    wait_for(lambda: not living(everything), seconds=60, what="its server is gone, too")


def test_sigterm_lets_training_save_and_leaves_no_process(finished, api, tmp_path):
    toy = _copy(finished, tmp_path, seed=4711)
    with _training(toy, **api.environment) as (flow, everything):
        _require_saved(toy, flow, everything, number=signal.SIGTERM, exit_code=75)


def _open_server(mark):
    """Return the one that a flow has started for itself, and its process."""
    (server,) = [pid for pid, words in left_of(mark).items() if "flows.server" in words]
    secrets = Path(f"/proc/{server}/environ").read_text().split("\0")
    return Api(dict(variable.split("=", 1) for variable in secrets if "=" in variable)), server


def test_kill_of_the_flow_leaves_no_process_and_the_next_run_marks_it_as_crashed_and_saves_on_ctrl_c(
    finished, tmp_path
):
    toy, mark = _copy(finished, tmp_path, seed=4711), new_mark()
    # Its own server makes Prefect's database from nothing, as that of the first `make compare` does.
    assert not (toy.folder / ".prefect/prefect.db").exists()
    with none_left_of(mark), _training(toy, **mark) as (flow, everything):
        assert len(everything) >= 4, "server, DVC, training and its rank"
        # Its own server is for its own user; what a stage is given of it: tests/flows/test_child.py.
        api, server = _open_server(mark)
        api.require_closed_to_others(server)
        assert [run["state_type"] for run in api.ask("flow_runs/filter", limit=1)] == ["RUNNING"]
        flow.kill()
        wait_for(lambda: not living(everything), seconds=60, what="every process is gone, which by itself stays")
    toy.executed()

    for name in ("slow.txt", "saved.txt"):
        (toy.folder / name).unlink(missing_ok=True)
    with none_left_of(mark), _training(toy, **mark) as (flow, everything):
        api, _ = _open_server(mark)
        assert "had been killed; it is now marked as crashed" in toy.output()
        assert toy.executed() == ["fingerprint", "train@2proc"]
        last, killed = api.ask("flow_runs/filter", sort="START_TIME_DESC", limit=2)
        wait_for(lambda: api.states(last).get("train@1proc") == "Cached", seconds=60, what="Prefect has heard of it")
        assert killed["state_type"] == "CRASHED"
        assert api.states(killed)["train@2proc"] == "Crashed"
        _require_saved(toy, flow, everything, number=signal.SIGINT, exit_code=130)
