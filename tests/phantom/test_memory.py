"""What a training of true models takes of a card, as torch's own allocator has it, and as a rehearsal foretells it."""

import json

import pytest
from ruamel.yaml import YAML

from tasks.machine.gpu_checks import compute_needed_gib
from tests.gpu.steps import read_told
from tests.phantom.cards import CARDS, CONTEXT_BYTES
from tests.phantom.counts import read_counts
from tests.phantom.true_models import NUM_PARAMETERS, make_true_case
from tests.processes import run_python
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import facts_of, train_under_torchrun
from training.rehearsal.rehearsed_step import rehearse_step

pytestmark = pytest.mark.slow


def _measure(folder, model="Qwen2-0.5B", **changes):
    done = run_python("-m", "tests.phantom.memory", folder, model, json.dumps(changes))
    assert done.returncode == 0, done.stderr[-4000:]
    assert "phantom:" not in done.stderr
    return json.loads(done.stdout)


def test_the_preset_fits_on_an_h100_with_its_packed_rows(on_phantom, tmp_path):
    counts = on_phantom("H100-80")
    found = _measure(tmp_path / "case", precision="bf16")
    assert found["parameters"] == 494_032_768
    # Weight, gradient and two moments, in fp32.
    state = found["parameters"] * 16 / 2**30
    assert state < found["allocated_gib"] < 2.5 * state
    # What does not fit shows in the warm-up, which has the largest micro-batch, moments and a gradient.
    assert found["warm_up_gib"] == pytest.approx(found["allocated_gib"], rel=0.02)
    assert found["allocated_gib"] <= found["reserved_gib"] < CARDS["H100-80"].memory_bytes / 2**30
    # The allocator's word against that of the driver below it.
    (ours,) = read_counts(counts)
    assert found["reserved_gib"] * 2**30 <= ours.highest_bytes[0] <= found["reserved_gib"] * 2**30 + 2**28
    rehearsed = _rehearse_gib(tmp_path, "H100-80", "Qwen2-0.5B", precision="bf16")
    assert rehearsed == pytest.approx(found["allocated_gib"], rel=0.05)


def test_packs_of_changing_length_reserve_little_more_than_they_take(on_phantom, tmp_path):
    # 64 packs of 16 rows as long as abstracts, in segments that grow, as ranks have them.
    on_phantom("4090")
    found = _measure(tmp_path / "case", precision="bf16", num_steps=16, is_expandable=True)
    assert found["allocated_gib"] <= found["reserved_gib"] < 1.05 * found["allocated_gib"], found
    # The warm-up has the largest pack, so that a training that begins does not run out of memory later.
    assert found["reserved_gib"] < 1.05 * found["warm_up_reserved_gib"]


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp2"])
def test_a_rehearsal_of_two_ranks_is_within_5_percent_of_what_their_training_records(strategy, on_phantom, tmp_path):
    model = make_tiny_model(tmp_path / "model", vocab_size=4096, hidden_size=256, num_layers=6)
    slices = [make_slice(tmp_path / "slice", num_rows=64, min_len=64, max_len=128, vocab_size=4096)]
    changes = {"global_batch_size": 32, "micro_batch_size": 8, "seq_len": 128, "precision": "bf16"}
    config = make_config(
        tmp_path / "work", model, slices, device="cuda", strategy=strategy, world_size=2, **changes
    )  # fmt: skip
    on_phantom("A100-80", num_cards=2)
    train_under_torchrun(config)
    recorded = facts_of(config, 0)["peak_memory_gib"]
    step = rehearse_step(read_told(config, tmp_path), capability=CARDS["A100-80"].capability)
    assert step.total_bytes / 2**30 == pytest.approx(recorded, rel=0.05)


_TEXT = """
- [H100-80, Llama-3.2-1B, {precision: bf16}]
- [H100-80, OPT-1.3B, {precision: bf16}]
- [H100-80, BERT-base, {precision: bf16}]
- [H100-80, ResNet18, {precision: bf16}]
- [A100-80, Qwen2-0.5B, {precision: bf16, packing: false, activation_checkpointing: layers}]
- [A100-80, Llama-3.2-1B, {precision: bf16, micro_batch_size: 64}]
- [H200, OPT-1.3B, {precision: bf16, micro_batch_size: 64, packing: false}]
- ["4090", Qwen2-0.5B, {precision: bf16}]
- ["4090", BERT-base, {precision: fp32}]
- [T4, Qwen2-0.5B, {precision: fp16, micro_batch_size: 4}]
- [T4, ResNet18, {precision: fp16, strategy: ddp}]
"""
_CASES = YAML(typ="safe", pure=True).load(_TEXT)


def _rehearse_gib(folder, card, model, **changes):
    """Return what a rehearsal says is allocated at most (GiB)."""
    case = make_true_case(folder / "again", model, num_steps=4)
    told = make_config(folder / "work", case.pop("model_dir"), case.pop("slices"), **{**case, **changes})
    step = rehearse_step(read_told(told, folder), capability=CARDS[card].capability)
    assert step.num_parameters == NUM_PARAMETERS[model]
    return step.total_bytes / 2**30


@pytest.mark.parametrize(("card", "model", "changes"), _CASES, ids=str)
def test_a_rehearsal_without_the_card_is_within_5_percent_of_what_is_allocated_on_it(
    card, model, changes, on_phantom, tmp_path
):
    on_phantom(card)
    found = _measure(tmp_path / "case", model, **changes)
    assert found["parameters"] == NUM_PARAMETERS[model]
    rehearsed = _rehearse_gib(tmp_path, card, model, **changes)
    assert rehearsed == pytest.approx(found["allocated_gib"], rel=0.05)
    assert compute_needed_gib(rehearsed) < CARDS[card].memory_bytes / 2**30
    assert found["allocated_gib"] <= found["reserved_gib"] <= (CARDS[card].memory_bytes - CONTEXT_BYTES) / 2**30
