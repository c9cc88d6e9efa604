"""What looks at every line of a rank, and what Python ran at its start, is known."""

import hashlib
import json
import subprocess
import sys

from tests.conftest import PROJECT
from training.record.setting import collect_interpreter, collect_run_at_start


def test_a_debugger_or_profiler_is_named():
    watched = [collect_interpreter()["watched_by"]]
    for watch, before in ((sys.settrace, sys.gettrace()), (sys.setprofile, sys.getprofile())):
        watch(lambda *_: None)
        watched.append(collect_interpreter()["watched_by"])
        watch(before)
    assert watched == [[], ["trace"], ["profile"]]
    if monitoring := getattr(sys, "monitoring", None):  # which came with Python 3.12
        monitoring.use_tool_id(1, "coverage")
        assert collect_interpreter()["watched_by"] == ["coverage"]
        monitoring.free_tool_id(1)


def test_a_module_that_python_ran_at_its_start_is_known_by_what_it_holds(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "usercustomize", raising=False)
    assert collect_run_at_start()["usercustomize"] is None
    for name in ("sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"import time  # {name}\n")
    told = "import json, usercustomize\nfrom training.record import setting\n"
    command = [sys.executable, "-c", f"{told}print(json.dumps(setting.collect_run_at_start()))"]
    done = subprocess.run(command, cwd=PROJECT, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=True)
    files = {name: tmp_path / f"{name}.py" for name in ("sitecustomize", "usercustomize")}
    assert json.loads(done.stdout) == {
        name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()
    }
