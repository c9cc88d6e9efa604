"""The audit is installed by itself, and audits a script from where it was installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT

_LEARNS = """
import sys
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[sys.argv.index("--rate") + 1]))
for _ in range(int(sys.argv[sys.argv.index("--steps") + 1])):
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_the_package_is_installed_by_itself_and_audits_a_script(tmp_path: Path) -> None:
    source, there = tmp_path / "source", tmp_path / "there"
    shutil.copytree(PROJECT / "ddp_audit", source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--offline"]
    python = ["--python", sys.executable, "--target", str(there)]
    subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:], *python, str(source)], check=True)
    found = {entry.name for entry in there.iterdir() if not entry.name.startswith(".")}
    assert {name for name in found if not name.endswith(".dist-info")} == {"bin", "ddp_audit"}
    (tmp_path / "train.py").write_text(_LEARNS)
    for rate, code, says in (("0.1", 0, "Nothing wrong was seen"), ("0", 1, "Nothing is learned")):
        words = ["train.py", "--cells", "1", "--rate", rate, "--", "--steps", "5"]
        done = subprocess.run(
            [sys.executable, there / "bin" / "ddp-audit", *words], cwd=tmp_path, text=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": str(there), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert (done.returncode, done.stdout.startswith(says)) == (code, True), done.stdout + done.stderr
