"""What a script may say itself: heard in an audit, nothing without one, and installed by itself."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_compare_observer import say_asked, step
from ddp_compare_observer.trainer import AuditCallback
from tests.conftest import PROJECT


def test_without_an_audit_nothing_happens() -> None:
    with step(ids=[1, 2], num_tokens=3):
        say_asked(epochs=3)
    assert AuditCallback().on_train_begin.__doc__


@pytest.mark.slow
def test_the_package_is_installed_by_itself(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(PROJECT / "ddp_compare_observer", source, ignore=shutil.ignore_patterns("__pycache__"))
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--offline"]
    python = ["--python", sys.executable, "--target", str(tmp_path / "there")]
    subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:], *python, str(source)], check=True)
    found = {entry.name for entry in (tmp_path / "there").iterdir() if not entry.name.startswith(".")}
    assert {name for name in found if not name.endswith(".dist-info")} == {"ddp_compare_observer"}
    done = subprocess.run(
        [sys.executable, "-c", "import ddp_compare_observer as o; print(o.__file__)"],
        cwd=tmp_path / "there", text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert str(tmp_path) in done.stdout
