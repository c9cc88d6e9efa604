"""The operations of a model, by hand and as torch counts them; the peaks they are held against."""

import json
from types import SimpleNamespace

import pytest

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
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    seq_len, head_dim = 24, 8 if kind != "qwen3" else 16
    config = AutoConfig.for_model(
        kind, hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=100, num_attention_heads=4,
        num_key_value_heads=2, head_dim=head_dim,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    input_ids = torch.zeros(3, seq_len, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=input_ids, use_cache=False).logits.sum().backward()
    expected = shape_of(config.to_dict()).count_flops_per_token(seq_len) * input_ids.numel()
    # Rotary angles are a tiny product of their own, the same for every layer and batch.
    angles = head_dim * seq_len * len(input_ids)
    assert expected <= counter.get_total_flops() <= expected + angles


def test_other_models_are_refused_with_a_reason():
    for config, reason in (
        ({"model_type": "mamba"}, "'mamba'"),
        ({**QWEN2_05B, "use_sliding_window": True}, "sliding window"),
        ({**QWEN2_05B, "layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"model_type": "llama", "hidden_size": 8}, "num_hidden_layers"),
    ):
        shape, problem = find_model_shape(config)
        assert (shape, reason in str(problem)) == (None, True)
    assert shape_of({**QWEN2_05B, "model_type": "mistral", "sliding_window": None}) == shape_of(QWEN2_05B)


@pytest.mark.parametrize(
    ("gpu", "precision", "is_tf32", "peak"),
    [
        ("A10", "bf16", True, 125.0),
        # 70: no share is above 1.
        ("A10G", "bf16", True, None),
        ("H100 80GB HBM3", "bf16", True, 989.5),
        ("H100 80GB HBM3", "fp32", True, 494.5),
        ("H100 80GB HBM3", "fp32", False, None),
        # No tensor cores for it.
        ("T4", "bf16", True, None),
        # Of no other by a like name.
        ("A10M", "fp16", True, None),
        ("H100 80GB HBM3 MIG 1g.10gb", "fp16", True, None),
    ],
)
def test_utilisation_is_held_against_the_data_sheets_peak_of_what_computed_it(tmp_path, gpu, precision, is_tf32, peak):
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
