"""Scripts that do to their process what no script should: they run as they would, and are observed all the same."""

from pathlib import Path

import pytest

from ddp_audit.asked import parse_request
from ddp_audit.checks import ask_all
from ddp_audit.launched import Audit
from tests.auditing.forked_scripts import ForkedScripts

_TRAIN = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_OPENS = "own = [open(f'own-{number}', 'w') for number in range(8)]\n"
_OPEN_RECORD = """
import os
paths = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
record = next(path for path in paths if path.endswith("rank-0.jsonl"))
"""
_FORGED = r"""
with open(record, "a") as file:
    for kind in ("window", "pass", "asked", "open", "loaded", "loader", "end", "torch", "children"):
        file.write('{"kind": "%s", "begin": [], "end": 7, "loader": 0}\n' % kind)
    file.write('{"kind": "step", "step": 2, "micros": [{}], "seconds": {}}\n')
"""
_HOSTILE = {
    "closes all files": f"import os\nos.closerange(3, 512)\n{_OPENS}",
    "closes ours, too": f"import os\nos.closerange(3, 65536)\n{_OPENS}",
    "stops the clocks": "import time\nfor name in ('time', 'perf_counter', 'monotonic', 'process_time'):\n"
    "    setattr(time, name, lambda: 0.0)\n",
    "replaces what it can": "import builtins, json, os, sys, threading\nos.write = os.getpid = json.dumps = None\n"
    "threading.current_thread = threading.main_thread = None\nsys.modules['__main__'] = object()\n",
    "forges lines": _OPEN_RECORD + _FORGED,
    "compiles losses": "import torch\nfor loss in (torch.nn.CrossEntropyLoss(), torch.nn.MSELoss()):\n"
    "    torch.jit.script(loss)\n",
    "has no modules": "import sys, torch\nfor name in [one for one in sys.modules if one.startswith('ddp_audit')]:\n"
    "    del sys.modules[name]\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_HOSTILE))
def test_a_hostile_script_runs_as_it_would_and_is_observed(forked: ForkedScripts, tmp_path: Path, name: str) -> None:
    (tmp_path / "script.py").write_text(_HOSTILE[name] + _TRAIN)
    launched = forked.launch([str(tmp_path / "script.py")], cell="1proc", world_size=1, folder=tmp_path)
    assert launched.exit_code == 0, launched.ending
    # Nothing of ours is in what it opened itself.
    assert all(not file.read_bytes() for file in tmp_path.glob("own-*"))
    assert launched.num_steps == (0 if name == "closes ours, too" else 5)
    assert "broken" not in launched.ranks[0].lines
    audit = Audit(parse_request({"SCRIPT": "script.py", "CELLS": "1", "FOLDER": str(tmp_path)}), {"1proc": [launched]})
    assert all(gate.verdict != "failed" for gate in ask_all(audit))
