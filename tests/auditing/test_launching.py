"""Launches of a script: each in a folder of its own, started by what the script needs, with nothing left running."""

import os
import threading

import pytest

from ddp_audit import fresh_folder
from ddp_audit.asked import parse_request
from ddp_audit.findings.cells import launches_alike
from ddp_audit.fresh_folder import make_fresh_folder
from ddp_audit.records import Audit
from ddp_audit.running import launch_script

_RESUMES = """
import os
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
assert not os.path.exists("last.pt")
begin = 0
if not os.path.exists("{rows}"):
    torch.save(torch.ones(2, 8), "{rows}")
rows = torch.load("{rows}")
if os.path.exists("{snapshot}"):
    saved = torch.load("{snapshot}")
    begin = saved["epoch"]
    model.load_state_dict(saved["model"])
for epoch in range(begin, 3):
    model(rows).sum().backward()
    optimizer.step()
    for file in ("last.pt", "{snapshot}"):
        torch.save({{"epoch": epoch, "model": model.state_dict()}}, file)
"""
_SPAWNS = """
import os, sys, time
import torch, torch.distributed as dist
def train(rank, world_size):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=rank, world_size=world_size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]))
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
"""


def test_a_launch_finds_the_folder_as_it_was_and_what_stands_around_it(tmp_path):
    folder = tmp_path / "above" / "of it"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / ".git").mkdir()
    for file in (".git/HEAD", "sub/data.txt", "../beside.txt"):
        (folder / file).write_text(file)
    (folder / "link").symlink_to("sub/data.txt")
    work = folder / "work"
    copy = make_fresh_folder(folder, work / "copy", leave_out=work)
    assert copy is not None
    for file in ("sub/data.txt", "link", "../beside.txt", ".git/HEAD"):
        assert (copy / file).read_text() == (folder / file).read_text()
    assert (copy / "sub" / "empty").is_dir()
    assert not (copy / "work").exists()
    (copy / "sub" / "data.txt").write_text("changed")
    (copy / "link").write_text("changed again")
    assert (folder / "sub" / "data.txt").read_text() == "sub/data.txt"


def test_of_a_large_folder_large_files_are_linked_and_one_of_many_small_ones_stays_where_it_is(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "large").write_bytes(bytes(100))
    (folder / "small").write_bytes(bytes(10))
    monkeypatch.setattr(fresh_folder, "_MOST_BYTES", 50)
    monkeypatch.setattr(fresh_folder, "_LARGE", 20)
    copy = make_fresh_folder(folder, tmp_path / "copy", leave_out=tmp_path)
    assert copy is not None
    assert not (copy / "small").is_symlink()
    assert (copy / "large").read_bytes() == bytes(100)
    monkeypatch.setattr(fresh_folder, "_MOST_BYTES", 5)
    assert make_fresh_folder(folder, tmp_path / "other", leave_out=tmp_path) is None


@pytest.mark.slow
def test_no_launch_goes_on_from_an_earlier_one_unless_it_is_told_where(launch, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "script.py").write_text(_RESUMES.format(snapshot=tmp_path / "last.pt", rows=tmp_path / "rows.pt"))
    copies = [make_fresh_folder(folder, tmp_path / f"copy-{number}", leave_out=tmp_path) for number in range(2)]
    first, second = (launch(["script.py"], copy) for copy in copies)
    assert (first.num_steps, second.num_steps) == (3, 1)
    request = parse_request({"SCRIPT": "script.py", "FOLDER": str(folder), "CELLS": "1"})
    found = launches_alike.find(Audit(request, {"1proc": [first, second]}), "1proc")
    assert "went_on" in [problem.code for problem in found.problems]
    # Rows that an earlier launch has left are no training to go on with.
    assert "last.pt" in found.compared
    assert "rows.pt" not in found.compared


@pytest.mark.slow
def test_ranks_that_a_script_starts_itself_are_observed_and_what_it_leaves_is_named_and_ended(tmp_path):
    (tmp_path / "script.py").write_text(_SPAWNS)
    request = parse_request({"SCRIPT": "script.py {ranks}", "FOLDER": str(tmp_path), "LAUNCHER": "python"})
    launched = launch_script(request, "2proc", tmp_path / "work", stop=threading.Event())
    assert launched.exit_code == 0, launched.ending
    assert [len(rank.steps) for rank in launched.ranks] == [3, 3]
    assert [rank.steps[0]["world_size"] for rank in launched.ranks] == [2, 2]
    assert any("script.py 2" in one for one in launched.left)
    assert not any(os.path.exists(f"/proc/{one.partition(' ')[0]}") for one in launched.left)
