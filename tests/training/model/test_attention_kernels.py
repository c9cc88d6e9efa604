"""Which kernel computes attention: one for all cells, and none of cuDNN's."""

import pytest
import torch

from training.model.attention_kernels import choose_attention_kernels


@pytest.fixture(autouse=True)
def _as_before():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_process_that_trains_on_a_gpu_leaves_cudnn_out():
    choose_attention_kernels(torch.device("cpu"))
    assert torch.backends.cuda.cudnn_sdp_enabled()
    choose_attention_kernels(torch.device("cuda"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    # What is left is torch's own.
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled()
