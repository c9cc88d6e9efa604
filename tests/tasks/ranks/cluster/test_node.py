"""What a machine gets before its ranks start: files by their sha256, and nothing else."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.params.choices import list_file_names
from tasks.ranks.cluster.machine import JobBundle, list_checkpoints
from tasks.ranks.cluster.node import NodeRanks
from tasks.ranks.launchers import Nodes
from tasks.ranks.launchers.ray import _Launch
from tests.flows.toy_project import wait_for
from tests.tiny import make_config, make_slice, make_tiny_model, make_tiny_workload
from training.model.weights import compute_parameter_checksum
from training.process.files import digest_file, write_json
from training.state.receipt import seal_folder
from training.workloads import find_workload


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return NodeRanks(1e9)


def test_a_file_that_is_another_here_is_sent_and_one_that_arrives_damaged_is_refused(node, tmp_path):
    (here := tmp_path / "here").write_bytes(b"the stage's")
    digest = digest_file(here)
    assert node.list_missing({"a": (digest, str(here))}) == []
    node._places.clear()
    here.write_bytes(b"another")
    assert node.list_missing({"a": (digest, str(here))}) == [digest]
    with pytest.raises(ValueError, match="did not arrive whole"):
        node.write(digest, b"the stage'", is_last=True)
    assert node.list_missing({"a": (digest, str(here))}) == [digest]
    node.write(digest, b"the st", is_last=False)
    node.write(digest, b"age's", is_last=True)
    assert node.list_missing({"a": (digest, str(here))}) == []
    # What came before is there for the next launch, as long as it is what it was.
    (kept,) = (tmp_path / "cache" / "ddp-compare" / "ray" / "files").iterdir()
    assert NodeRanks(1e9).list_missing({"a": (digest, "nowhere")}) == []
    kept.write_bytes(b"damaged")
    assert NodeRanks(1e9).list_missing({"a": (digest, "nowhere")}) == [digest]


def test_the_folder_of_a_launch_goes_with_the_next_one_once_its_actor_is_gone(node):
    others = NodeRanks(1e9)
    node.list_missing({})
    assert others._folder.is_dir()
    others._lock.close()
    node.list_missing({})
    assert not others._folder.exists()
    assert node._folder.is_dir()


_SETTINGS = {
    # What is set in the shell of the stage holds on all machines, and nothing else of its kind.
    "NCCL_ALGO": ("Ring", "Tree", "Ring"),
    "MALLOC_ARENA_MAX": ("1", None, "1"),
    "NCCL_DEBUG": (None, "INFO", None),
    # A machine knows its own files and devices.
    "CUDA_VISIBLE_DEVICES": ("GPU-5ab1", "0", "0"),
    "LD_AUDIT": ("/here.so", None, None),
    "NCCL_CONF_FILE": ("/here", None, None),
    "NCCL_IB_HCA": ("mlx5_0", None, None),
    "NCCL_SOCKET_IFNAME": ("eth0", None, None),
}
"""Name -> what it is for the stage, on the other machine, and there for a rank."""


def test_ranks_on_another_machine_have_the_settings_of_the_stages_shell_and_places_of_their_own(node, monkeypatch):
    def set_all(place):
        for name, values in _SETTINGS.items():
            monkeypatch.delenv(name, raising=False)
            if values[place] is not None:
                monkeypatch.setenv(name, values[place])

    launch = _Launch.__new__(_Launch)
    launch._world_size, launch._threads, launch._machines = 2, 1, [SimpleNamespace(address="127.0.0.1")]
    launch._nodes = Nodes(num_nodes=2, address="auto", wait_seconds=1.0, silence_seconds=1.0)
    set_all(0)
    environment = launch._make_environment()
    set_all(1)
    (node._folder / "code").mkdir()
    words = ["-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    node.start([1], words, environment, world_size=2, config={}, own=None)
    wait_for(lambda: node.look()["codes"] == {1: 0}, seconds=60, what="it ended well")
    found = json.loads(node.finish()["logs"]["1/stdout.log"])
    assert {name: found.get(name) for name in _SETTINGS} == {name: there for name, (*_, there) in _SETTINGS.items()}


def test_a_bundle_has_code_data_and_what_the_launch_goes_on_from(tmp_path):
    model, rows, work = make_tiny_model(tmp_path / "model"), make_slice(tmp_path / "data" / "0-40"), tmp_path / "work"
    told = make_config(work, model, [rows], epochs=2)
    first, second = (segment["fingerprint"] for segment in told["segments"])
    write_json(tmp_path / "config.json", told)
    segment, step = work / f"segments/{first}", work / f"partial/{second}/step-00000004"
    for folder, fingerprint in ((segment, first), (step, second)):
        with seal_folder(folder, fingerprint=fingerprint, facts={}) as being_made:
            (being_made / "weights.pt").write_bytes(fingerprint.encode())
    bundle = JobBundle(tmp_path / "config.json")
    assert {
        "code/training/loop.py", "code/tasks/ranks/cluster/node.py", "data/0/model.safetensors",
        f"work/segments/{first}/receipt.json", f"work/partial/{second}/step-00000004/weights.pt",
    } <= bundle.files.keys()  # fmt: skip
    # A checkpoint that is not whole is none; of a finished segment weights may be dropped, not damaged.
    (step / "weights.pt").write_bytes(b"damaged")
    assert list(list_checkpoints(work, told)) == [segment]
    (segment / "weights.pt").unlink()
    assert list(list_checkpoints(work, {**told, "keep": "last"})) == [segment]
    (segment / "weights.pt").write_bytes(b"damaged")
    assert list(list_checkpoints(work, told)) == []


@pytest.mark.parametrize("name", list_file_names("training/workloads"))
def test_what_comes_over_is_all_that_a_machine_needs_of_a_workload(name, node, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    workload = find_workload(name)
    model, slices = make_tiny_workload(name, tmp_path / "here")
    checksum, size = compute_parameter_checksum(workload.load_model(model)), len(workload.open_slice(slices[1]))
    write_json(tmp_path / "config.json", make_config(tmp_path / "work", model, slices, workload=name))
    bundle = JobBundle(tmp_path / "config.json")
    files = {name: told for name, told in bundle.files.items() if name.startswith("data/")}
    for digest, place in files.values():
        node.write(digest, Path(place).read_bytes(), is_last=True)
    shutil.rmtree(tmp_path / "here")
    folder = Path(node.prepare(files, project=None, node_rank=1, address="")["folder"])
    there = json.loads(json.dumps(bundle.make_config(folder)))
    assert compute_parameter_checksum(workload.load_model(Path(there["model_dir"]))) == checksum
    assert len(workload.open_slice(Path(there["segments"][1]["slice_dir"]))) == size
