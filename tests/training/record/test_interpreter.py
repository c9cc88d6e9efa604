"""What looks at every line of a rank, and what Python ran at its start, is known."""

import hashlib
import sys
from types import SimpleNamespace

import pytest

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


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_a_module_that_python_ran_at_its_start_is_known_by_what_it_holds(name, tmp_path, monkeypatch):
    file = tmp_path / "any.py"
    file.write_text("import time\n")
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(__file__=str(file)))
    assert collect_run_at_start()[name] == hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.delitem(sys.modules, name)
    assert collect_run_at_start()[name] is None
