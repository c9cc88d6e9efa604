"""Every command that README shows is run, or stands below with the test that runs it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.integration.test_cache import STAGES
from tests.workspace import Workspace

RUN_ELSEWHERE = {
    "make test": "it is what runs this test",
    "make emulate": "tests/benchmarks/emulator/test_main.py runs its command",
    "make serve": "tests/integration/test_prefect_serve.py runs its command",
    "prefect deployment run ddp-compare": "tests/integration/test_prefect_serve.py types it",
    "prefect deployment run rebench": "tests/integration/test_prefect_serve.py types it",
    "make rebench": "tests/integration/test_rebench.py runs its command",
}
COMMANDS_RUN_BELOW = [
    "make compare",
    "make use PRESET=embedded",
    "make params",
    "make use PRESET=qwen2-arxiv",
    "make use PRESET=imdb",
    "make use PRESET=resnet18-imagefolder",
    "dvc repro",
    "dvc dag",
    "dvc metrics show",
    "dvc plots show",
    "dvc params diff",
    "make mlflow",
]


def _commands(readme: str) -> set[str]:
    """Return the commands of README's indented blocks, without their trailing remarks."""
    lines = re.findall(r"^ {4}((?:make|dvc|prefect) .*)$", readme, flags=re.MULTILINE)
    return {re.sub(r"\s+#.*$", "", line).strip() for line in lines}


def test_every_command_of_the_readme_is_run_by_a_test(project: Path) -> None:
    assert _commands((project / "README.md").read_text()) == {*COMMANDS_RUN_BELOW, *RUN_ELSEWHERE}


def test_every_file_that_the_readme_names_is_there(project: Path) -> None:
    readme = (project / "README.md").read_text()
    tree = readme[readme.index("## Files") :]
    named = re.findall(r"[a-z_]+\.(?:py|yaml|toml|lock|md)\b", tree)
    assert len(named) > 20
    for name in set(named):
        tops = [project / top for top in ("flows", "tasks", "training", "docs")]
        assert (project / name).is_file() or any(list(top.rglob(name)) for top in tops), name


@pytest.fixture
def with_make(workspace: Workspace, project: Path) -> Workspace:
    """The finished comparison, with the Makefile and the environment that it expects."""
    environment = project / ".venv"
    if not (environment / ".ready").is_file():
        pytest.skip("no .venv made by `make setup` in the checkout")
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy2(project / name, workspace.folder / name)
        os.utime(workspace.folder / name, (0, 0))  # older than the environment: nothing to install
    (workspace.folder / ".venv").symlink_to(environment)
    return workspace


@pytest.mark.slow
def test_the_readme_commands_do_what_they_say(with_make: Workspace) -> None:
    run = with_make.run
    said = run("make", "compare").stdout
    assert said.count(": cached, ") == len(STAGES) - 1  # fingerprint runs every time
    assert said.rstrip().endswith("Report: reports/index.html")
    said = run("dvc", "repro").stdout
    assert "Running stage 'train" not in said
    assert "train@2proc" in run("dvc", "dag").stdout
    assert "2proc.seconds_per_epoch" in run("dvc", "metrics", "show").stdout
    run("dvc", "plots", "show")
    assert "2proc" in (with_make.folder / "dvc_plots" / "index.html").read_text()
    run("git", "add", "params.yaml", "dvc.yaml", "dvc.lock")
    run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    with_make.change({"train.learning_rate": 0.003})
    assert re.search(r"train\.learning_rate\s+0\.002\s+0\.003", run("dvc", "params", "diff").stdout)
    assert "yours was saved" in run("make", "use", "PRESET=embedded").stdout
    assert "is valid" in run("make", "params").stdout
    for preset in ("qwen2-arxiv", "imdb", "resnet18-imagefolder"):
        run("make", "use", f"PRESET={preset}")
        assert f"name: {preset}" in (with_make.folder / "params.yaml").read_text()


@pytest.mark.slow
def test_make_mlflow_answers(with_make: Workspace) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 5000)) == 0:
            pytest.skip("something else listens on port 5000")
    process = subprocess.Popen(
        ["make", "mlflow"], cwd=with_make.folder, env=with_make.environment(), start_new_session=True
    )
    try:
        assert _answers("http://127.0.0.1:5000/health", process)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.status == 200
        except OSError:
            time.sleep(0.5)
    return False
