"""The operations of a model, by hand and as torch counts them; the peaks they are held against."""

import json
from types import SimpleNamespace

import pytest

from tasks.machine.gpu_facts import find_peak_tflops
from tasks.measuring.account import _compute_utilisation
from tasks.measuring.model_flops import ModelShape, find_model_shape

QWEN2_05B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""What decides the operations of Qwen/Qwen2-0.5B-Instruct."""


def shape_of(config):
    shape, problem = find_model_shape(config)
    assert shape is not None, problem
    return shape


def test_documents_count_the_pairs_that_causal_attention_has():
    shape = ModelShape(matmul_weights=1000, num_layers=3, attention_width=8)
    # 4 tokens have 1 + 2 + 3 + 4 = 10 pairs, 2 tokens have 3.
    assert shape.count_document_flops([4, 2]) == 6 * 1000 * 6 + 12 * 3 * 8 * 13


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_torch_counts_the_same_operations(kind):
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    seq_len, sizes = 24, {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 100}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8 if kind != "qwen3" else 16}
    config = AutoConfig.for_model(kind, **sizes, **heads)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    import torch

    input_ids = torch.zeros(3, seq_len, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=input_ids, use_cache=False).logits.sum().backward()
    expected = shape_of(config.to_dict()).count_flops_per_token(seq_len) * input_ids.numel()
    # Rotary angles are a tiny product of their own, the same for every layer and batch.
    angles = 2 * heads["head_dim"] / 2 * seq_len * len(input_ids)
    assert expected <= counter.get_total_flops() <= expected + angles


def test_other_models_are_refused_with_a_reason():
    for config, reason in (
        ({"model_type": "mamba"}, "'mamba'"),
        ({**QWEN2_05B, "use_sliding_window": True}, "sliding window"),
        ({**QWEN2_05B, "layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window"),
        ({"model_type": "llama", "hidden_size": 8}, "num_hidden_layers"),
    ):
        shape, problem = find_model_shape(config)
        assert (shape, reason in str(problem)) == (None, True)
    assert shape_of({**QWEN2_05B, "model_type": "mistral", "sliding_window": None}) == shape_of(QWEN2_05B)


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("Tesla T4", "bf16", None),  # no tensor cores for it
        ("NVIDIA A10", "bf16", 125.0),
        ("NVIDIA A10G", "bf16", 70.0),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA A10M", "fp16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "fp16", None),
        ("NVIDIA GeForce RTX 4090 D", "fp16", None),
    ],
)
def test_the_peak_of_a_gpu_is_that_of_its_data_sheet_and_of_no_other_by_a_like_name(name, precision, tflops):
    assert find_peak_tflops(name, precision) == tflops


@pytest.mark.parametrize(
    ("gpu", "precision", "is_tf32", "peak"),
    [("H100 80GB HBM3", "fp32", True, 494.5), ("H100 80GB HBM3", "fp32", False, None),
     ("H100 80GB HBM3", "bf16", True, 989.5), ("T4", "fp32", True, None)],
)  # fmt: skip
def test_fp32_is_held_against_the_peak_of_what_computed_it_and_no_share_is_above_1(
    tmp_path, gpu, precision, is_tf32, peak
):
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_05B))
    session = SimpleNamespace(
        params=SimpleNamespace(train=SimpleNamespace(precision=precision, adapter=None)), device="cuda",
        lengths=[5, 5], machine=SimpleNamespace(gpus=[SimpleNamespace(name=f"NVIDIA {gpu}")]), base_model=tmp_path,
    )  # fmt: skip
    shape = shape_of(QWEN2_05B)
    # 100 TFLOP/s by either definition; rows of 5 tokens have 4 labels.
    rates = 100e12 / (shape.count_document_flops([5, 5]) / 8), 100e12 / shape.count_flops_per_token(5)
    found = _compute_utilisation(session, SimpleNamespace(world_size=1), *rates, positions_per_row=5.0, is_tf32=is_tf32)
    assert found == ((None, None) if peak is None else pytest.approx((100 / peak, 100 / peak)))
