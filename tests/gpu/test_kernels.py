"""On a GPU: the kernels that were chosen without one compute what they are to compute."""

import pytest
import torch

from training.model.linear_loss import _compute_softmax, linear_cross_entropy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.mark.parametrize("vocab_size", [1_000, 32_001, 151_936])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_softmax_in_place_has_the_bits_of_one_in_memory_of_its_own(dtype, vocab_size):
    logits = 30 * torch.randn(300, vocab_size, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    logits = logits.to(dtype)
    expected = torch.softmax(logits, dim=-1, dtype=torch.float32)
    assert torch.equal(_compute_softmax(logits, out=torch.empty_like(expected)), expected)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_heads_gradient_is_as_near_to_fp64_as_one_product_in_16_bit(dtype, is_compiled):
    random = torch.Generator("cuda").manual_seed(1)
    hidden = torch.randn(700, 64, device="cuda", generator=random).to(dtype)
    head = torch.randn(1_003, 64, device="cuda", generator=random) / 8
    targets = torch.randint(1_003, (700,), device="cuda", generator=random)
    exact = [part.to(dtype).double().requires_grad_() for part in (hidden, head)]
    torch.nn.functional.cross_entropy(exact[0] @ exact[1].T, targets, reduction="sum").backward()
    found = [part.detach().clone().requires_grad_() for part in (hidden, head)]
    with torch.autocast("cuda", dtype):
        # The last chunk has other rows than the first.
        linear_cross_entropy(*found, targets, chunk_rows=256, is_compiled=is_compiled).backward()
    for got, wanted in zip(found, exact, strict=True):
        # Logits and their gradient are rounded once each, to 8 and 11 bits; sums of many chunks are not.
        assert float((got.grad.double() - wanted.grad).norm() / wanted.grad.norm()) < 2 * torch.finfo(dtype).eps
