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
def test_the_commands_of_the_pages_do_what_they_say(with_make):
    run = with_make.run
    said = run("make", "compare").stdout
    assert said.count(": cached, ") == len(STAGES) - 1  # fingerprint runs every time
    assert said.rstrip().endswith("Report: reports/index.html")
    shutil.copytree(with_make.folder / "reports", with_make.folder / "old")
    said = run("make", "diff", "A=old/results.json", "B=reports/results.json").stdout
    assert "The same work on the same machine" in said
    assert "What differs" in (with_make.folder / "reports" / "diff.html").read_text()
    said = run("make", "rehearse", "GPU=2x H100-80").stdout
    assert "1proc fits." in said
    assert "2proc fits." in said


@pytest.mark.slow
def test_what_the_pages_show_of_dvc_has_plots_and_figures_of_ours(workspace):
    run = workspace.run
    run("dvc", "plots", "show")
    plots = (workspace.folder / "dvc_plots" / "index.html").read_text()
    assert "charts_speedup.svg" in plots
    for field in ("strokeDash", "yOffset", "2proc"):
        assert f'"{field}"' in plots
    assert set(re.findall(r"https?://[^/]+/", plots)) == {"https://cdn.jsdelivr.net/", "https://vega.github.io/"}
    workspace.commit("compared", "params.yaml", "dvc.yaml", "dvc.lock", "reports/metrics.json")
    workspace.change({"train.learning_rate": 0.003})
    metrics = workspace.folder / "reports" / "metrics.json"
    metrics.write_text(re.sub(r"\b\d+\.", "1.", metrics.read_text()))
    run("dvc", "exp", "save", "--force")
    shown = run("dvc", "exp", "show", "--only-changed", "--drop", "Created|tokens|.*/").stdout
    assert "heldout_loss" in shown
    assert re.search(r"train\.learning_rate", shown)
    assert max(map(len, shown.splitlines())) <= 80, shown
