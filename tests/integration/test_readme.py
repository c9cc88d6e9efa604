"""The commands that README, CONTRIBUTING and docs/ show are there, and do what the pages say."""

import os
import re
import shutil

import pytest

from tests.integration.test_cache import STAGES


@pytest.fixture
def with_make(workspace, project):
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
def test_the_commands_of_the_pages_do_what_they_say(with_make, project):
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
    metrics = with_make.folder / "reports" / "metrics.json"
    metrics.write_text(re.sub(r"\b\d+\.", "1.", metrics.read_text()))
    run("dvc", "exp", "save", "--force")
    shown = run("dvc", "exp", "show", "--only-changed", "--drop", "Created|tokens|.*/").stdout
    assert "heldout_loss" in shown
    assert re.search(r"train\.learning_rate", shown)
    assert max(map(len, shown.splitlines())) <= 80, shown
    assert re.search(r"train\.learning_rate\s+0\.002\s+0\.003", run("dvc", "params", "diff").stdout)
    assert "yours was saved" in run("make", "use", "PRESET=embedded").stdout
    assert "is valid" in run("make", "params").stdout
    said = run("make", "rehearse", "GPU=2x H100-80").stdout
    assert "1proc fits." in said
    assert "2proc fits." in said
