"""Masks are made without looking, so that a training step reads no value from the device: shown on a CPU."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.models import build
from training.model.attention_kernels import skip_mask_checks

_READS = {"equal", "is_nonzero", "item", "_local_scalar_dense", "masked_select", "nonzero"}
"""What returns a number, or a tensor whose size is one, and therefore waits for the device."""


class _NoReads(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in _READS, f"{func} reads a value"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["mistral", "modernbert"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_what_is_seen_is_what_transformers_lets_be_seen(kind, is_padded):
    """Some of whose layers see 3 tokens to one side or to both."""
    window = {"sliding_window": 3} if kind == "mistral" else {"local_attention": 6, "initializer_range": 0.5}
    model = build(kind, classifies=kind != "mistral", **window).eval()
    input_ids = torch.arange(1, 41).reshape(2, 20)
    mask = torch.ones_like(input_ids)
    if is_padded:
        mask[1, 15:] = 0
    with torch.no_grad():
        theirs = model(input_ids=input_ids, attention_mask=mask).logits
        with skip_mask_checks(is_padded=is_padded), _NoReads():
            ours = model(input_ids=input_ids, attention_mask=mask).logits
        blind = model(input_ids=input_ids, attention_mask=torch.ones_like(mask)).logits
    if kind == "mistral":
        theirs, ours = theirs[mask == 1], ours[mask == 1]
    elif is_padded:
        assert not torch.allclose(blind, theirs, rtol=1e-3)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
