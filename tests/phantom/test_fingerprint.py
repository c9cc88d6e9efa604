"""The stage `fingerprint` on cards that are not there: what torch could not train on is told before any download."""

import json
import re
import shutil

import pytest
from ruamel.yaml import YAML

from tests.conftest import PROJECT
from tests.processes import run_python
from tests.warm.sources import link_sources

pytestmark = pytest.mark.slow

SLICE = "MIG-00000000-0000-0000-0000-000000000200"
"""The second slice of the first card."""
_ON_THE_CPU = "or set CUDA_VISIBLE_DEVICES to nothing to train on the CPU"
_SLICED = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
_TEXT = f"""
a driver too old:
  - {{PHANTOM_DRIVER_CUDA: "12040"}}
  - [the NVIDIA driver 595.00.00 runs CUDA 12.4 at most, update the driver to 580 or later]
# After an update of the driver without a restart.
a driver of another version than its library:
  - {{PHANTOM_REFUSED: "Init:0:18"}}
  - [no NVIDIA driver answers, version mismatch; see that `nvidia-smi` works]
a card that fell off the bus:
  - {{PHANTOM_REFUSED: "Handle:1:15"}}
  - ["GPU 1 does not answer: GPU is lost", "restart the machine, leave it out with CUDA_VISIBLE_DEVICES"]
# As many slices as ranks are named, and no process sees more than one of them.
two slices for two ranks:
  - {{PHANTOM_SLICES: "2", CUDA_VISIBLE_DEVICES: "{SLICE},MIG-00000000-0000-0000-0000-000000000100"}}
  - [cells.2gpu has 2 ranks, "one MIG slice and nothing else, here {_SLICED}; switch",
     "name whole GPUs in CUDA_VISIBLE_DEVICES, give the cell 1 at most", "oversubscribe: true in it"]
"""
_REFUSED = YAML(typ="safe", pure=True).load(_TEXT)

_H100 = ("NVIDIA H100 80GB HBM3", "9.0")
_ON_ONE = """cells:
  1gpu: {strategy: single, world_size: 1}
  shared: {strategy: ddp, world_size: 2, oversubscribe: true}
"""
"""Cells that want one card."""


@pytest.fixture
def fingerprint(tmp_path, monkeypatch, on_phantom):
    """Return `fingerprint(environment)`: the stage in a folder of its own, on a machine with two cards."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shutil.copy(PROJECT / "dvc.yaml", link_sources(tmp_path))
    params = (PROJECT / "presets" / "qwen2-arxiv.yaml").read_text()
    params = params.replace("micro_batch_size: auto", "micro_batch_size: 16")
    (tmp_path / "params.yaml").write_text(params)

    def run(environment, *, cells=""):
        if cells:
            (tmp_path / "params.yaml").write_text(re.sub(r"cells:\n(  .*\n)+", cells, params))
        on_phantom(num_cards=2)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        names = ("machine", "sources", "trial", "stages")
        words = [word for name in names for word in (f"--{name}", f"{name}.json")]
        return run_python("-m", "tasks.fingerprint", *words, folder=tmp_path)

    return run


@pytest.mark.parametrize(("environment", "words"), _REFUSED.values(), ids=_REFUSED)
def test_what_cannot_be_trained_on_is_refused_in_one_line_with_the_remedy(environment, words, fingerprint, tmp_path):
    done = fingerprint(environment)
    assert done.returncode == 4, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("fingerprint: ")
    assert [part for part in (*words, _ON_THE_CPU) if part not in line] == [], line
    assert not (tmp_path / "machine.json").exists()


@pytest.mark.parametrize(
    ("environment", "cells", "found"),
    [
        # CUDA shows a process one slice, whose capability is that of the card.
        ({"PHANTOM_SLICES": "3"}, _ON_ONE, [(_SLICED, "9.0")]),
        ({"PHANTOM_SLICES": "0", "CUDA_VISIBLE_DEVICES": ""}, "", []),
        ({"PHANTOM_REFUSED": "Init:0:18", "CUDA_VISIBLE_DEVICES": ""}, "", []),
        ({"PHANTOM_REFUSED": "Handle:0:4"}, _ON_ONE, [_H100]),
        ({"PHANTOM_REFUSED": "Handle:1:15", "CUDA_VISIBLE_DEVICES": "0"}, _ON_ONE, [_H100]),
        ({"PHANTOM_REFUSED": "MemoryInfo:0:3", "CUDA_VISIBLE_DEVICES": "0"}, _ON_ONE, [_H100]),
    ],
    ids=[
        "a slice", "the CPU", "the CPU, whatever the driver says", "a card of somebody else", "a lost card beside",
        "a card with the host's memory",
    ],
)  # fmt: skip
def test_what_can_be_trained_on_is_kept_as_the_machines(environment, cells, found, fingerprint, tmp_path):
    done = fingerprint(environment, cells=cells)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    gpus = json.loads((tmp_path / "machine.json").read_bytes())["gpus"]
    assert [(gpu["name"], gpu["compute_capability"]) for gpu in gpus] == found
