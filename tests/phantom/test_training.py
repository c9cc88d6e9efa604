"""Whole trainings on cards that are not there: torch's own NCCL process group, allocator, streams and sync check."""

import json

import pytest
from ruamel.yaml import YAML

from tasks.data.sources.image_models import write_image_network
from tests.extras import skip_without
from tests.gpu.steps import NUM_STEPS, WORKLOADS
from tests.images import CLASS_NAMES
from tests.phantom.cards import CARDS
from tests.phantom.counts import read_counts
from tests.phantom.steps import A_WAIT, RUNS
from tests.phantom.test_fingerprint import SLICE
from tests.processes import run_python
from tests.tiny import make_config, make_tiny_workload
from tests.training.conftest import facts_of, train_under_torchrun, weights_at_end

pytestmark = pytest.mark.slow


def _train(folder, **changes):
    """Train a tiny comparison's cell under torchrun to its end; return its config."""
    workload = changes.pop("workload", "causal_lm")
    model, slices = make_tiny_workload(workload, folder)
    if changes.get("statistics_rows"):
        write_image_network(model, "resnet18", CLASS_NAMES, norm="sync_batch")
    world_size = changes.get("world_size", 1)
    given = {"device": "cuda", "workload": workload, "strategy": "ddp" if world_size > 1 else "single"}
    config = make_config(folder / "work", model, slices, **{**given, **changes})
    said = train_under_torchrun(config)
    assert "phantom:" not in said, said[-6000:]
    return config


_TEXT = """
packed rows: {packing: true, precision: bf16}
# As the presets for GPUs have it.
packed rows, compiled: {packing: true, compile: true, precision: bf16}
classes: {workload: sequence_classification, precision: fp16}
images normalised over 2: {workload: image_classification, precision: fp16, world_size: 2, statistics_rows: 4}
factors on 2:
  {workload: instruction, precision: bf16, world_size: 2,
  adapter: {kind: lora, rank: 4, alpha: 8.0, targets: all-linear, base: null}}
responses on 2: {workload: instruction, packing: true, strategy: fsdp2, precision: bf16, world_size: 2}
layers recomputed, by SGD: {activation_checkpointing: layers, optimizer: sgd, precision: bf16}
shards on the host of 2: {strategy: fsdp2, precision: bf16, world_size: 2, options: {offload: cpu, mixed: bf16}}
stages and shares on 8:
  {strategy: pipeline, world_size: 8, global_batch_size: 16, options: {replicas: 4, zero1: true}}
# On 4 a flag lies where a bucket of gradients was, on one rank and not on another.
zero stage 2 on 4:
  {strategy: deepspeed, world_size: 4, global_batch_size: 16, options: {stage: 2}, precision: bf16}
zero stage 3 on the host of 2:
  {strategy: deepspeed, world_size: 2, options: {stage: 3, offload: cpu}, precision: fp32}
exact on 2: {exact: true, world_size: 2}
options of ddp on 2: {world_size: 2, options: {gradient_hook: bf16, static_graph: true}}
"""
_CELLS = YAML(typ="safe", pure=True).load(_TEXT)


@pytest.mark.parametrize("cell", _CELLS.values(), ids=_CELLS)
def test_a_training_over_nccl_runs_to_its_checkpoint_and_each_rank_uses_its_own_device_alone(
    cell, on_phantom, tmp_path, monkeypatch
):
    if "adapter" in cell:
        skip_without("peft")
    if cell.get("strategy") == "deepspeed":
        skip_without("deepspeed")
        # It goes on by flags, by which ranks must not part.
        monkeypatch.setenv("PHANTOM_LONE_NUMBERS", "0")
    num_ranks = cell.get("world_size", 1)
    counts = on_phantom("H100-80", num_cards=num_ranks)
    config = _train(tmp_path, **cell)
    assert weights_at_end(config)
    facts = facts_of(config)
    assert facts["backend"] == ("nccl" if num_ranks > 1 else None)
    # An eighth of the card's memory is far more than it takes.
    assert 0 < facts["peak_memory_gib"] < 10
    ranks = [one for one in read_counts(counts) if one.devices]
    assert sorted(min(one.devices) for one in ranks) == list(range(num_ranks))
    assert all(len(one.devices) == 1 for one in ranks), [one.devices for one in ranks]
    assert all(one.launches > 100 for one in ranks)
    if cell.get("packing") and cell["precision"] == "bf16":
        (setting,) = facts["settings"]
        assert setting["kernels"]["attention_kernel"] == "flash, all documents of a pack at once"
    if cell.get("workload") != "image_classification":
        # Attention is never cuDNN's, which on an H100 would build a plan for every new shape.
        assert not any(one.plans for one in ranks)
    assert all((one.collectives > 0) is (num_ranks > 1) for one in ranks)
    assert len({one.collectives for one in ranks}) == 1


@pytest.mark.parametrize(
    ("cell", "backend"),
    [({}, None), ({"strategy": "ddp", "world_size": 2, "oversubscribe": True}, "gloo")],
    ids=["1 rank", "2 ranks that share it"],
)
def test_ranks_on_a_slice_of_a_card_train_to_their_checkpoint_and_record_its_name(
    cell, backend, on_phantom, tmp_path, monkeypatch
):
    # The second of three slices, as a user would choose it.
    monkeypatch.setenv("PHANTOM_SLICES", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{SLICE},{SLICE.replace('0200', '0100')}")
    # The name of earlier versions; what else stands in it counts, too.
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    counts = on_phantom()
    config = _train(tmp_path, precision="bf16", packing=True, **cell)
    assert weights_at_end(config)
    facts = facts_of(config)
    assert facts["backend"] == backend
    assert {setting["device"] for setting in facts["settings"]} == {f"{CARDS['H100-80'].name} MIG 1g.10gb"}
    # Whoever has set the allocator is left to it.
    named = [{name for name in setting["environment"] if "ALLOC_CONF" in name} for setting in facts["settings"]]
    assert all(names == {"PYTORCH_CUDA_ALLOC_CONF"} for names in named), named
    assert all(one.devices == {0} for one in read_counts(counts) if one.devices)


def test_no_step_waits_for_the_device(on_phantom, tmp_path):
    on_phantom()
    done = run_python("-m", "tests.phantom.steps", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop(A_WAIT) == "called a synchronizing CUDA operation"
    assert len(found) == len(WORKLOADS) * len(RUNS)
    assert {name: steps for name, steps in found.items() if steps != list(range(1, NUM_STEPS + 1))} == {}
    assert "phantom:" not in done.stderr
