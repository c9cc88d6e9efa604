"""The audit is installed by itself, and audits a script from where it was installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.conftest import PROJECT

_LEARNS_NOTHING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
epochs = 3
while True:
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_the_package_is_installed_by_itself_and_audits_a_script_without_end(tmp_path):
    token, source, there = "hf_" + "a" * 30, tmp_path / "source", tmp_path / "there"
    shutil.copytree(PROJECT / "ddp_audit", source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--offline"]
    python = ["--python", sys.executable, "--target", str(there)]
    subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:], *python, str(source)], check=True)
    found = {entry.name for entry in there.iterdir() if not entry.name.startswith(".")}
    assert {name for name in found if not name.endswith(".dist-info")} == {"bin", "ddp_audit"}
    (tmp_path / "train.py").write_text(_LEARNS_NOTHING)
    workflow = YAML(typ="safe").load(PROJECT / "docs" / "examples" / "audit.yml")
    assert workflow["env"]["AUDIT"].startswith("train.py ")
    steps = [step["run"] for step in workflow["jobs"]["audit"]["steps"] if "run" in step]
    assert [step.split()[0] for step in steps] == ["pip", "pip", "ddp-audit", "cat"]
    path = os.pathsep.join([str(there / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ, "PATH": path, "PYTHONPATH": str(there), "OMP_NUM_THREADS": "1",
        "AUDIT": f"train.py --cells 1 --steps 5 -- --token {token}", "GITHUB_STEP_SUMMARY": "summary.md",
    }  # fmt: skip
    audit, show = (
        subprocess.run(["bash", "-ec", step], cwd=tmp_path, text=True, capture_output=True, env=environment)
        for step in steps[2:]
    )
    says = "Nothing is learned"
    assert (audit.returncode, audit.stdout.startswith(says)) == (1, True), audit.stdout + audit.stderr
    assert show.returncode == 0
    report = (tmp_path / "summary.md").read_text()
    assert says in report
    assert "As many epochs as asked for" in report
    assert token not in report + audit.stdout + audit.stderr
