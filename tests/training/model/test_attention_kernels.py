"""Which kernel computes attention: one for all cells, and none of cuDNN's."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from training.model.attention_kernels import choose_attention_kernels, find_attention_kernel, has_varlen_kernel


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_process_that_trains_on_a_gpu_leaves_cudnn_out() -> None:
    choose_attention_kernels(torch.device("cpu"))
    assert torch.backends.cuda.cudnn_sdp_enabled()
    choose_attention_kernels(torch.device("cuda"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    # What is left is torch's own.
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled()


def test_on_a_cpu_no_kernel_is_named_and_packs_have_none_of_their_own() -> None:
    model: Any = nn.Identity()
    model.config = SimpleNamespace(num_attention_heads=4)
    assert find_attention_kernel(model, torch.device("cpu"), precision="bf16", is_masked=False) is None
    assert not has_varlen_kernel(torch.device("cpu"), is_16_bit=True)
    assert not has_varlen_kernel(torch.device("cuda"), is_16_bit=False)
