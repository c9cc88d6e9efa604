"""Two ranks and an audit on the oldest torch and transformers that pyproject.toml allows."""

import os
import re
import subprocess
import sys
import tomllib

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.slow

_CONTRACT = "tests/training/test_strategy_contract.py"
_HELD = [
    f"{_CONTRACT}::{name}[{strategy}]"
    for strategy in ("ddp", "fsdp2", "zero1")
    for name in (
        "test_its_updates_are_those_of_one_plain_process",
        "test_torch_recorded_what_its_ranks_counted_in_a_training",
    )
] + ["tests/auditing/test_command.py::test_a_script_is_audited_from_outside_and_finds_its_process_as_it_left_it"]


@pytest.fixture(scope="session")
def oldest_python(tmp_path_factory):
    """Return the interpreter of an environment with the lower ends of the range; all else is the one of the tests."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    lowest = [
        re.sub(r">=([\d.]+)$", r"==\1.*", one)
        for one in project["dependencies"]
        if one.startswith(("torch>", "transf"))
    ]
    folder = tmp_path_factory.mktemp("oldest") / "venv"
    python = folder / "bin" / "python"
    for words in (
        ["uv", "venv", "--quiet", "--python", sys.executable, folder],
        # torchvision for that torch: transformers imports what it finds.
        ["uv", "pip", "install", "--quiet", "--python", python, *lowest, "torchvision"],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no environment with {', '.join(lowest)}: {done.stderr.strip()[-200:]}")
    (own,) = folder.glob("lib/python*/site-packages")
    # Behind its own packages on the path.
    (own / "tests.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return python


def test_two_ranks_and_an_audit_are_right_on_the_oldest_torch(oldest_python):
    environment = {**os.environ, "PATH": f"{oldest_python.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [oldest_python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_HELD],
        cwd=PROJECT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(rf"\b{len(_HELD)} passed", done.stdout), done.stdout[-2000:]
