"""The causal language model and its loss."""

import torch

from training.workloads.causal_lm import load_model


def test_weights_are_fp32_even_where_the_folder_holds_bf16(tmp_path, models):
    load_model(models("tiny")).to(torch.bfloat16).save_pretrained(tmp_path / "bf16")
    assert {part.dtype for part in load_model(tmp_path / "bf16").parameters()} == {torch.float32}
