"""Ranks of one machine are reached by nobody else: neither from the network nor by another user of the machine."""

import os
import pickle
import sys
import time

import pytest

from tasks.ranks.launchers.torchrun import start
from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, write_device
from tests.hostile.payloads import touching
from tests.listeners import Listeners
from tests.processes import new_mark, none_left_of, run_python
from tests.tiny import make_config, make_slice
from training.process.files import write_json

pytestmark = pytest.mark.slow

NOBODY = 65534
READING = """
import os, sys
os.setuid(int(sys.argv[2]))
try:
    print(sorted(os.listdir(sys.argv[1])))
except PermissionError:
    print("refused")
"""
WRITING = """
import datetime, os, sys, threading, time
import torch.distributed as dist

def write(port):
    seconds = datetime.timedelta(seconds=3)
    store = dist.TCPStore("127.0.0.1", int(port), is_master=False, timeout=seconds, wait_for_workers=False)
    store.set("torch.rendezvous", bytes.fromhex(sys.argv[1]))
    print(port, flush=True)
    for key in store.list_keys():
        store.set(key, bytes.fromhex(sys.argv[1]))

writers = [threading.Thread(target=write, args=(port,), daemon=True) for port in sys.argv[2:]]
for writer in writers:
    writer.start()
# Each gives up after three seconds; one that does not is left behind.
deadline = time.monotonic() + 6
for writer in writers:
    writer.join(max(0.0, deadline - time.monotonic()))
os._exit(0)
"""


@pytest.fixture(scope="module")
def launch(tmp_path_factory, warm):
    """Two ranks under the real launcher that train for longer than these tests, and what they listen on.

    Their layers sleep: whoever writes to their ports has the cores.
    """
    mark, folder = new_mark(), tmp_path_factory.mktemp("listens")
    work = folder / "w o:r,k=ü"
    work.mkdir()
    device = EmulatedDevice(forward_ms=10)
    config = make_config(
        work, write_device(folder / "model", device), [make_slice(folder / "slice", num_rows=16)], epochs=4_000,
        cell="2proc", strategy="ddp", world_size=2, global_batch_size=4, workload=WORKLOAD,
    )  # fmt: skip
    write_json(work / "config.json", config)
    with none_left_of(mark), Listeners(mark) as listeners:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(warm / "python"))
            for name, value in mark.items():
                patch.setenv(name, value)
            started = start(work / "config.json", world_size=2, threads_per_rank=1, log_folder=work / "logs")
        try:
            _wait_for_step(started, work, at_least=1)
            yield started, listeners
        finally:
            started.stop(grace_seconds=0.0)
    assert list((work / "logs").glob("rendezvous")) == []


def _wait_for_step(launch, work, *, at_least):
    events, deadline = work / "steps.jsonl", time.monotonic() + 120
    while not events.exists() or events.read_text().count('"step"') < at_least:
        assert launch.is_running, launch.explain_end()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nothing_but_the_ranks_of_gloo_listens_and_on_loopback_alone(launch):
    _, listeners = launch
    assert listeners.num_looks > 20
    assert [listener for listener in listeners.found if listener.is_open] == []
    assert {listener.address.rpartition(":")[0] for listener in listeners.found} == {"127.0.0.1"}
    assert all("-m training " in listener.owner for listener in listeners.found), listeners.found


def test_a_pickle_that_somebody_sends_to_every_open_port_is_taken_by_none(launch, tmp_path):
    started, listeners = launch
    assert listeners.found
    canary = tmp_path / "canary"
    ports = [listener.address.rpartition(":")[2] for listener in listeners.found]
    done = run_python("-c", WRITING, pickle.dumps(touching(canary)).hex(), *ports)
    assert done.stdout.split() == [], "ports at which a store of torch takes it"
    work = started.log_folder.parent
    _wait_for_step(started, work, at_least=(work / "steps.jsonl").read_text().count('"step"') + 5)
    assert not canary.exists()


def test_no_other_user_gets_at_the_files_in_which_ranks_meet(launch, tmp_path):
    folder = launch[0].log_folder / "rendezvous"
    assert {file.name for file in folder.iterdir()} == {"ranks", "torchrun"}
    assert folder.stat().st_mode & 0o777 == 0o700
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for above in folder.parents:
        if above.is_relative_to(tmp_path.parent.parent):
            above.chmod(0o755)
    for user, found in ((os.geteuid(), "['ranks', 'torchrun']"), (NOBODY, "refused")):
        done = run_python("-c", READING, folder, user)
        assert done.stdout.strip() == found, done.stderr
