"""What is refused before anything is downloaded, of GPUs, drivers and builds of torch whose facts are known."""

import json
import sys

import pytest
import torch

from tasks.machine import torch_facts
from tasks.machine.torch_facts import TorchFacts, fetch_torch_facts
from tasks.machine.usable_gpus import explain_order, explain_slow, explain_too_few, explain_unfit, has_code_for
from tasks.params import Params
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ResourceError
from tasks.records.facts import GpuFacts
from tasks.records.manifests import MachineFile
from tests.conftest import PROJECT
from tests.extras import skip_without
from tests.tasks.reporting.rendered import lacks

CUDA_13 = TorchFacts(
    version="2.15.0+cu132", cuda="13.2", num_gpus=2, problem=None,
    arch_list=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
)  # fmt: skip
"""As the wheel of this torch has it."""


def make_gpu(name, capability):
    return GpuFacts(name=name, memory_gib=15.0, compute_capability=capability)


T4, V100, H100 = make_gpu("Tesla T4", "7.5"), make_gpu("Tesla V100-SXM2-16GB", "7.0"), make_gpu("NVIDIA H100", "9.0")


PRESET = read_strict_yaml(PROJECT / "presets" / "qwen2-arxiv.yaml")


@pytest.mark.parametrize(
    ("gpus", "build", "driver_cuda", "words"),
    [
        ((T4, H100, make_gpu("NVIDIA GeForce RTX 4090", "8.9"), make_gpu("unknown", None)), {"num_gpus": 4}, 13020, []),
        # Any CUDA of one major version runs on the drivers of another of that version.
        ((T4,), {}, 13000, []),
        ((T4,), {}, None, []),
        ((T4,), {"cuda": "12.8"}, 12040, []),
        ((T4,), {}, 12040, ["580.65.06", "CUDA 12.4", "CUDA 13.2", "580 or later", "make setup TORCH=cuda12"]),
        ((T4, V100), {}, 13020, [V100.name, "7.0", "sm_75, sm_80", "CUDA_VISIBLE_DEVICES"]),
        (
            (H100,),
            {"version": "2.15.0+cpu", "cuda": None, "arch_list": (), "num_gpus": 0},
            13020,
            ["2.15.0+cpu", "built for CPUs", H100.name],
        ),
    ],
)
def test_a_build_without_code_for_a_gpu_or_too_new_for_its_driver_is_refused(gpus, build, driver_cuda, words):
    facts = CUDA_13.model_copy(update=build)
    found = explain_unfit(gpus, facts, driver="580.65.06", driver_cuda=driver_cuda) or ""
    assert bool(found) is bool(words)
    assert not lacks(found, *words)


@pytest.mark.parametrize(
    ("major", "minor", "arch_list", "runs"),
    [
        (8, 9, "sm_80", True),
        (8, 0, "sm_86", False),
        (9, 0, "sm_80 compute_80", True),
        (7, 5, "compute_80", False),
        (9, 0, "sm_90a", True),
        (10, 3, "sm_100a", False),
        (10, 3, "sm_100f", True),
        (12, 0, "sm_100 compute_100a", False),
    ],
)
def test_machine_code_runs_on_its_own_generation_and_what_is_translated_on_later_ones(major, minor, arch_list, runs):
    assert has_code_for((major, minor), arch_list.split()) is runs


def test_gpus_of_several_kinds_have_to_be_numbered_as_the_driver_does():
    names = ["NVIDIA GeForce GT 1030", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"]
    for environment in ({}, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):
        words = ("GT 1030 (0)", "RTX 4090 (1, 2)", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1,2")
        assert not lacks(explain_order(names, environment) or "", *words)
    assert explain_order(names, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) is None
    assert explain_order(names, {"CUDA_VISIBLE_DEVICES": "GPU-5ab1"}) is None
    assert explain_order(names[1:], {}) is None


@pytest.mark.parametrize(
    ("cell", "num_there", "words"),
    [
        ({}, 4, ["cells.other has 2 ranks", "1 may be used here of 4", "CUDA_VISIBLE_DEVICES"]),
        ({"world_size": 4, "num_nodes": 2, "launcher": "ray"}, 1, ["cells.other has 2 ranks on every machine"]),
        ({"oversubscribe": True}, 1, []),
        ({"num_nodes": 2, "launcher": "ray"}, 1, []),
    ],
)
def test_more_ranks_than_gpus_are_told_by_machine(cell, num_there, words):
    if "launcher" in cell:
        skip_without("ray")
    cells = {"first": {"strategy": "single", "world_size": 1}, "other": {"strategy": "ddp", "world_size": 2, **cell}}
    params = Params.model_validate({**PRESET, "cells": cells, "ray": {"address": "auto"}})
    machine = MachineFile.model_construct(gpus=[H100], num_gpus=1)
    found = explain_too_few(params, machine, num_there=num_there, is_slice=False)
    assert bool(found) is bool(words)
    assert not lacks(str(found), *words)


@pytest.mark.parametrize(
    ("program", "why"), [("echo first >&2; echo no libnccl >&2; exit 1", "no libnccl"), ("sleep 9", "")]
)
def test_a_torch_that_does_not_start_is_one_line_with_what_it_said(program, why, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(torch_facts, "_LONGEST_SECONDS", 0.5)
    with pytest.raises(ResourceError, match=f"torch does not start here: .*{why}.*; unset LD_LIBRARY_PATH"):
        fetch_torch_facts("another machine")


@pytest.mark.parametrize(
    ("gpu", "train", "says"),
    [
        (T4, {}, ["train.precision: bf16", T4.name, "7.5", "train.emulated_bf16: true"]),
        (T4, {"emulated_bf16": True}, []),
        (T4, {"precision": "fp16"}, []),
        (make_gpu("unknown", None), {}, []),
        # Compiled packs, where their documents run one by one.
        (T4, {"precision": "fp16", "compile": True}, [T4.name]),
        (H100, {"precision": "fp32", "compile": True}, ["in fp32"]),
        (H100, {"compile": True}, []),
    ],
)
def test_bf16_before_ampere_and_packs_that_are_compiled_in_vain_are_refused(gpu, train, says):
    params = Params.model_validate({**PRESET, "train": {**PRESET["train"], "compile": False, **train}})
    found = explain_slow(params, [H100, gpu]) or ""
    assert bool(found) is bool(says)
    assert not lacks(found, *says)


@pytest.mark.slow
def test_torch_is_asked_in_a_process_of_its_own_and_once_for_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.chdir(tmp_path)
    found = fetch_torch_facts("machine")
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)
    # Not kept where there is a problem: whoever mends the driver is to be believed.
    assert list(tmp_path.iterdir()) == [] or torch.cuda.is_available()
    kept = tmp_path / ".work" / "torch.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps({"machine": "machine", "torch": CUDA_13.model_dump(mode="json")}))
    assert fetch_torch_facts("machine") == CUDA_13
    monkeypatch.setattr(torch_facts, "_ask_torch", lambda: CUDA_13.model_copy(update={"num_gpus": 1}))
    assert fetch_torch_facts("another machine").num_gpus == 1
    assert json.loads(kept.read_text())["machine"] == "another machine"
