"""A whole comparison in an odd folder, without git and with nothing in params.yaml but the work."""

import shutil

import pytest
from mlflow import MlflowClient

from tests.architecture.test_makefile import ODD
from tests.workspace import SMALL, Workspace

_LEFT_OUT = dict.fromkeys(("description", "quality", "cost", "tracking", "upload"))


@pytest.mark.slow
def test_a_download_without_git_in_an_odd_folder_says_what_to_type_and_then_works_without_optional_sections(
    tmp_path, project, warm
):
    measure = {"measure.speed": False}
    changes = {**SMALL, "ranges": ["0-64"], "heldout": "64-80", **measure, **_LEFT_OUT}
    workspace = Workspace.create(tmp_path / ODD, project=project, changes=changes, programs=warm)
    folder = workspace.folder
    shutil.rmtree(folder / ".git")
    shutil.copy(project / "Makefile", folder)
    (folder / ".venv").symlink_to(warm.parent)
    make = ("make", "-o", ".venv/.ready")

    assert workspace.run(*make, "params").stdout == "params.yaml is valid\n"
    said = workspace.run(*make, "compare", ok=False).stdout.splitlines()
    assert "is not a git repository; to work without one: dvc config --local core.no_scm true" in said[-2]

    workspace.run("dvc", "config", "--local", "core.no_scm", "true")
    said = workspace.run(*make, "compare").stdout
    assert "Exception" not in said
    assert "WARNING" not in said
    assert (folder / "reports" / "index.html").is_file()
    assert len(MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").search_runs(["1"])) == 3
    assert any((folder / "mlruns").rglob("index.html"))
    said = workspace.repro().stdout
    assert said.count("didn't change, skipping") == 8
    # The stage that always runs is all that DVC names.
    assert workspace.run("dvc", "status").stdout.split() == ["fingerprint:", "always", "changed"]
