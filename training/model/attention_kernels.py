"""Which kernel of torch's computes attention on a GPU: chosen here, so that every cell and every shape has the same.

By itself torch sends 16-bit attention to cuDNN from Hopper on. That builds a plan for every new shape, which takes from
42 ms to a second, and packs are a new shape nearly every time.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

from training.model import packed_attention

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision of forward and backward -> its dtype."""
_LARGEST_HEAD = 256
"""Of flash attention, in 16 bit."""


def choose_attention_kernels(device: torch.device) -> None:
    """Leave cuDNN's attention out of this process, on a GPU: what is left is torch's own, the fastest that fits."""
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def find_attention_kernel(model: nn.Module, device: torch.device, *, precision: str, is_masked: bool) -> str | None:
    """Return what computes the model's attention on a GPU: flash, memory-efficient or plain.

    `is_masked`: whether padding is masked, which flash cannot. None on a CPU, and where the model's config does not
    tell its heads. Asks torch, with two tokens of these heads.
    """
    config: Any = getattr(model, "config", None)
    num_heads = getattr(config, "num_attention_heads", None)
    if device.type != "cuda" or num_heads is None:
        return None
    is_16_bit, size = precision != "fp32", _find_head_size(config)
    is_packed = config._attn_implementation == packed_attention.NAME
    if is_packed and has_varlen_kernel(device, is_16_bit=is_16_bit) and suits_varlen_kernel(model):
        return "flash, all documents of a pack at once"
    num_keys = getattr(config, "num_key_value_heads", None) or num_heads
    query, key = (
        torch.empty(1, number, 2, size, dtype=DTYPES[precision], device=device, requires_grad=True)
        for number in (num_heads, num_keys)
    )
    mask = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=device) if is_masked else None
    asked = SDPAParams(query, key, key, mask, 0.0, not is_masked, num_heads != num_keys)
    if can_use_flash_attention(asked):
        return "flash"
    return "memory-efficient" if can_use_efficient_attention(asked) else "plain"


def has_varlen_kernel(device: torch.device, *, is_16_bit: bool) -> bool:
    """Return whether the variable-length kernel runs there: in 16 bit, on NVIDIA's Ampere and later."""
    return device.type == "cuda" and is_16_bit and torch.cuda.get_device_capability(device) >= (8, 0)


def suits_varlen_kernel(model: nn.Module) -> bool:
    """Return whether the variable-length kernel takes the model: heads in steps of 8, at most 256, no dropout."""
    size = _find_head_size(model.config)
    return size % 8 == 0 and size <= _LARGEST_HEAD and not has_dropout(model)


def has_dropout(model: nn.Module) -> bool:
    """Return True if the model's config or one of its modules has a dropout rate above 0."""
    config: Any = model.config
    rates = [value for name, value in config.to_dict().items() if "drop" in name]
    rates += [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def _find_head_size(config: Any) -> int:
    size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return size


@contextlib.contextmanager
def skip_mask_checks(*, is_padded: bool) -> Iterator[None]:
    """Have transformers make the masks of its "sdpa" attention so, while inside; `is_padded`: if anything is.

    The model has to be given an attention mask: without one it looks at the positions instead.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] = _make_padded_mask if is_padded else _make_unpadded_mask
    try:
        yield
    finally:
        del ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]


def _make_padded_mask(
    *, attention_mask: Tensor | None, allow_is_causal_skip: bool, allow_is_bidirectional_skip: bool = False, **rest: Any
) -> Tensor | None:
    # What looks back only sees no padding that stands last.
    if allow_is_causal_skip or attention_mask is None:
        return _make_unpadded_mask(
            allow_is_causal_skip=allow_is_causal_skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip, **rest
        )
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(attention_mask=attention_mask, allow_is_causal_skip=False, **rest)


def _make_unpadded_mask(*, attention_mask: Tensor | None = None, **rest: Any) -> Tensor | None:
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(attention_mask=None, **rest)
