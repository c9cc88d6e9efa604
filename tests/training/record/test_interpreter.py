"""What looks at every line of a rank, and what Python ran at its start, is known."""

import hashlib
import json
import subprocess
import sys

import pytest

from tests.conftest import PROJECT


def _collect_in_process(line, *, folder):
    """Return what a new Python tells that ran `line` first, with `folder` in front of its path."""
    told = f"import json, sys; {line}\nfrom training.record import setting as it\n"
    told += "print(json.dumps(it.collect_interpreter() | it.collect_run_at_start()))"
    command = [sys.executable, "-c", told]
    done = subprocess.run(command, cwd=PROJECT, env={"PYTHONPATH": str(folder)}, capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("line", "watchers"),
    [
        ("pass", []),
        ("sys.settrace(lambda *_: None)", ["trace"]),
        ("sys.setprofile(lambda *_: None)", ["profile"]),
        pytest.param(
            "sys.monitoring.use_tool_id(1, 'coverage')", ["coverage"],
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12"),
        ),
    ],
)  # fmt: skip
def test_a_debugger_or_profiler_is_named(line, watchers, tmp_path):
    assert _collect_in_process(line, folder=tmp_path)["watched_by"] == watchers


def test_a_module_that_python_ran_at_its_start_is_known_by_what_it_holds(tmp_path):
    assert _collect_in_process("pass", folder=tmp_path)["usercustomize"] is None
    for name in ("sitecustomize", "usercustomize"):
        module = tmp_path / f"{name}.py"
        module.write_text("import time\n")
        told = _collect_in_process("import usercustomize" if name == "usercustomize" else "pass", folder=tmp_path)
        assert told[name] == hashlib.sha256(module.read_bytes()).hexdigest()
