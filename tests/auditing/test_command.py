"""`make audit` from outside: under torchrun, on scripts that nobody has prepared, well behaved and not."""

import json
import re
import sys

import pytest

from tests.conftest import PROJECT
from tests.flows.toy_project import living
from tests.processes import list_named, run_python

_STEPS = """
import os, subprocess, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

assert os.environ["BEFORE"] == "it was loaded"
assert "DDP_COMPARE_AUDIT" not in os.environ
assert os.environ["PYTHONPATH"] == sys.argv[2]
print("told:", sys.argv[1])
rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
open(f"rank-{rank}", "x").close()  # no launch before has left one
os.chdir("/")
if world_size > 1:
    left = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print("left:", left.pid, flush=True)
is_spread = "RANK" in os.environ
if is_spread:
    dist.init_process_group("gloo")
words = [[f"word{(row * 7 + at * (row % 5 + 1)) % 40}" for at in range(12)] for row in range(32)]
rows = DataLoader(
    words, batch_size=8 // world_size, sampler=DistributedSampler(words, world_size, rank, seed=0),
    collate_fn=lambda texts: torch.tensor([[1 + hash(word) % 500 for word in text] for text in texts]),
)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(501, 8), torch.nn.Linear(8, 501))
wrapped = torch.nn.parallel.DistributedDataParallel(model) if is_spread else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for batch in rows:
        wrapped(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
if is_spread:
    dist.barrier()
sys.stdout.flush()
os._exit(0)
"""
_HANGS = """
import time
import torch, torch._dynamo, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    model(torch.ones(2, 4)).sum().backward()
    if step == 3 and dist.get_rank() == 1:
        time.sleep(600)
    with torch.no_grad():
        for _ in range(8 * (step == 1 and dist.get_rank() == 0)):
            model(torch.ones(2, 4))
            time.sleep(0.5)
    dist.barrier()
    optimizer.step()
"""


def _audit(folder, script, **asked):
    (folder / "a script.py").write_text(script)
    told = {"OMP_NUM_THREADS": "1", "LAUNCHES": "1", "SPEED": "1", "INTERPRETER": sys.executable}
    told |= dict.fromkeys(["FOLDER", "TMPDIR"], str(folder)) | {"PYTHONPATH": str(PROJECT)}
    return run_python("-m", "ddp_audit", folder=folder, **told | asked)


def _read_output(folder, name):
    return "\n".join(file.read_text() for file in sorted(folder.glob(f".work/audits/*/*/logs/**/{name}")))


@pytest.mark.slow
def test_a_script_is_audited_from_outside_and_finds_its_process_as_it_left_it(tmp_path):
    own = tmp_path / "own path"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['BEFORE'] = 'it was loaded'\n")
    path = f"{own}:{PROJECT}"
    done = _audit(
        tmp_path, _STEPS, SCRIPT=f"'a script.py' 'two words' '{path}'", CELLS="1,2", PYTHONPATH=path
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("Each process has a vocabulary of its own: id ")
    assert "Same ids for the same text: 2proc: what is id" in done.stdout
    assert "2proc: speedup withheld" in done.stdout
    output = _read_output(tmp_path, "*.log")
    assert output.count("told: two words") == 4
    assert not (tmp_path / "rank-0").exists()
    left = [int(line.partition(": ")[2]) for line in output.splitlines() if line.startswith("left: ")]
    assert len(left) == 2
    assert living(left) == []
    page = (tmp_path / "reports" / "audit" / "index.html").read_text()
    assert "What it does to the claim" not in page  # nothing of it can be counted
    assert "PYTHONHASHSEED" in page
    found = json.loads((tmp_path / "reports" / "audit" / "findings.json").read_text())["findings"]
    verdicts = {gate["name"]: gate["outcome"] for gate in found}
    assert verdicts["Same parameters on all ranks"] == verdicts["Exchanged once per update"] == "passed"
    # Where torchrun starts it, its model is wrapped; python alone has started it, too.
    (baseline,) = next(gate["findings"] for gate in found if gate["name"] == "Baseline is the plain module")
    assert baseline["outcome"] == "passed"
    assert "python started it" in baseline["compared"]


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_ended_and_none_that_waits_while_another_evaluates(tmp_path):
    done = _audit(tmp_path, _HANGS, SCRIPT="'a script.py'", CELLS="2", HANG_SECONDS="3")
    assert done.returncode == 6
    last = done.stderr.strip().splitlines()[-1]
    assert re.search("^ddp-audit: .*rank 1 hangs in section [a-z]+ of step 4", last)
    assert "time.sleep" in _read_output(tmp_path, "stderr.log") or "line 11" in _read_output(tmp_path, "stderr.log")
    assert list_named(tmp_path) == []
