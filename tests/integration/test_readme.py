"""Every command that README, CONTRIBUTING and docs/ show is run, or stands below with who runs it."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.integration.test_cache import STAGES
from tests.workspace import Workspace

RUN_ELSEWHERE = {
    "make test": "it is what runs this test",
    "make test-fast": "a part of `make test`",
    "make setup": "it made the environment of this test; tests/architecture/test_makefile.py runs its recipe",
    'make audit SCRIPT="train.py --epochs 2" CELLS=1,2': "tests/auditing/test_command.py runs its command",
    'make audit SCRIPT="train.py --epochs 2 --batch-size {rank_share:32}" CELLS=1,2': "another script of it",
    'make audit SCRIPT="train.py --gpus {ranks}" LAUNCHER=python SPEED=1': "another script of it",
    "make setup TORCH=installed": "tests/architecture/test_makefile.py runs its recipe",
    "make setup TORCH=cuda12": "the same",
    'make rehearse GPU="2x T4"': "it differs from the next by its card alone",
    "make licences": "tests/architecture/test_licences.py runs its checks",
    "prefect server start": "Prefect's own command, for another machine: no test types it",
    "make nodes-demo": "tests/integration/test_two_hosts.py has the same comparison, on two hosts",
    "make search": "tests/integration/test_search.py runs its command",
    "make serve": "tests/integration/test_prefect_serve.py runs its command",
    "prefect deployment run ddp-compare": "tests/integration/test_prefect_serve.py types it",
    "prefect deployment run rebench": "tests/integration/test_prefect_serve.py types it",
    "make rebench": "tests/integration/test_rebench.py runs its command",
    'make fit GPU="2x 4090"': "tests/tasks/rehearsal/test_command.py runs its command",
    'make rehearse GPU="4x 48GB,864GB/s,181TFLOP/s"': "tests/tasks/rehearsal/test_command.py runs one such",
    'make rehearse GPU="2x 48GB,864GB/s,181TFLOP/s,link 32GB/s"': "tests/tasks/rehearsal/test_cards.py reads it",
}
COMMANDS_RUN_BELOW = [
    "make compare",
    "ddp-compare run --preset imdb -S train.learning_rate=1e-5 --dry-run",
    "make params",
    "make diff A=old/results.json B=reports/results.json",
    'make rehearse GPU="2x H100-80"',
    "dvc repro",
    "dvc dag --mermaid",
    "dvc exp show --only-changed --drop '.*/'",
    "dvc metrics show",
    "dvc plots show",
    "dvc params diff",
    "dvc remote add --default team s3://bucket/ddp-compare",
    "dvc push",
    "dvc pull",
    "make mlflow",
]


def _commands(page: str) -> set[str]:
    """Return the commands of the page's indented blocks, without their trailing remarks."""
    lines = re.findall(r"^ {4}((?:ddp-compare|make|dvc|prefect) .*)$", page, flags=re.MULTILINE)
    return {re.sub(r"\s+#.*$", "", line).strip() for line in lines}


def test_every_command_of_every_page_is_run_by_a_test(project: Path) -> None:
    pages = [project / "README.md", project / "CONTRIBUTING.md", *(project / "docs").glob("*.md")]
    shown = {page: _commands(page.read_text()) for page in pages}
    assert {"make compare", "make test"} <= shown[project / "README.md"]
    presets = {f"make use PRESET={file.stem}" for file in (project / "presets").glob("*.yaml")}
    assert set().union(*shown.values()) - presets == {*COMMANDS_RUN_BELOW, *RUN_ELSEWHERE}


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
def test_the_commands_of_the_pages_do_what_they_say(with_make: Workspace, project: Path) -> None:
    run = with_make.run
    said = run("make", "compare").stdout
    assert said.count(": cached, ") == len(STAGES) - 1  # fingerprint runs every time
    assert said.rstrip().endswith("Report: reports/index.html")
    before = (with_make.folder / "params.yaml").read_bytes()
    said = run("ddp-compare", "run", "--preset", "imdb", "-S", "train.learning_rate=1e-5", "--dry-run").stdout
    assert "8 of 9 stages to run" in said
    assert "download: params.yaml (" in said
    assert (with_make.folder / "params.yaml").read_bytes() == before
    shutil.copytree(with_make.folder / "reports", with_make.folder / "old")
    said = run("make", "diff", "A=old/results.json", "B=reports/results.json").stdout
    assert "The same work on the same machine" in said
    assert "What differs" in (with_make.folder / "reports" / "diff.html").read_text()
    said = run("dvc", "repro").stdout
    assert "Running stage 'train" not in said
    assert re.search(r'"train@2proc"', run("dvc", "dag", "--mermaid").stdout)
    assert "heldout_loss" in run("dvc", "metrics", "show").stdout
    run("dvc", "plots", "show")
    plots = (with_make.folder / "dvc_plots" / "index.html").read_text()
    assert "charts_speedup.svg" in plots
    for field in ("strokeDash", "yOffset", "2proc"):
        assert f'"{field}"' in plots
    assert set(re.findall(r"https?://[^/]+/", plots)) == {"https://cdn.jsdelivr.net/", "https://vega.github.io/"}
    run(
        "dvc", "remote", "add", "--default", "team", str(with_make.folder.parent / "store")
    )  # a folder needs no account
    run("dvc", "push")
    for name in (".dvc/cache", ".work", "data/evaluation"):
        shutil.rmtree(with_make.folder / name)
    run("dvc", "pull")
    assert (with_make.folder / "data" / "evaluation" / "evaluation.json").is_file()
    with_make.commit("compared", "params.yaml", "dvc.yaml", "dvc.lock", "reports/metrics.json")
    with_make.change({"train.learning_rate": 0.003})
    shown = run("dvc", "exp", "show", "--only-changed", "--drop", ".*/").stdout
    assert re.search(r"train\.learning_rate", shown)
    assert max(map(len, shown.splitlines())) <= 80, shown
    assert re.search(r"train\.learning_rate\s+0\.002\s+0\.003", run("dvc", "params", "diff").stdout)
    assert "yours was saved" in run("make", "use", "PRESET=embedded").stdout
    assert "is valid" in run("make", "params").stdout
    said = run("make", "rehearse", "GPU=2x H100-80").stdout
    assert "1proc fits." in said
    assert "2proc fits." in said
