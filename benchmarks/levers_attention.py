"""Attention alone: document by document, against one call with a mask and against documents padded to one length."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.levers_loss import seconds_in_turns
from benchmarks.rounds import compute_ratio
from training.model.packed_attention import attend

DOCUMENTS = ((50, 76, 102, 128), (60, 94, 128, 162, 196, 230, 264, 300))
_HEADS, _HEAD_DIM = 4, 32
_OURS = "document by document"


def attention_arms(lengths: Sequence[int]) -> tuple[dict[str, Callable[[], Tensor]], list[Tensor]]:
    """Return what each way computes of such documents, () float32, and the tensors that get gradients."""

    def random(*shape: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [torch.randn(*shape, _HEAD_DIM, generator=generator).requires_grad_() for _ in range(3)]

    packed, padded = random(1, _HEADS, sum(lengths)), random(len(lengths), _HEADS, max(lengths))
    document = torch.repeat_interleave(torch.tensor(lengths))
    mask = (document[:, None] == document).tril()
    return {
        _OURS: lambda: attend(torch.nn.Module(), *packed, None, document_lengths=lengths)[0].square().sum(),
        "block-diagonal mask": lambda: F.scaled_dot_product_attention(*packed, attn_mask=mask).square().sum(),
        "padding to one length": lambda: F.scaled_dot_product_attention(*padded, is_causal=True).square().sum(),
    }, [*packed, *padded]


def measure_attention(lengths: Sequence[int]) -> dict[str, Any]:
    """Time forward and backward of every way, in turns."""
    torch.set_num_threads(1)
    arms, leaves = attention_arms(lengths)
    seconds = seconds_in_turns(arms, leaves=leaves)
    gains = {name: compute_ratio(spans, seconds[_OURS]) for name, spans in seconds.items() if name != _OURS}
    return {
        "lengths": list(lengths),
        "gains": {name: [gain.value, gain.low, gain.high] for name, gain in gains.items()},
        "seconds": seconds,
    }


def attention_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return what was found as lines of the table."""
    lengths, ms = found["lengths"], {name: 1e3 * float(np.median(spans)) for name, spans in found["seconds"].items()}
    return [
        [
            f"attention {_OURS} instead of {name}", "1", "", f"{value:.3f} ({low:.3f} to {high:.3f})",
            f"{ms[name]:.1f} -> {ms[_OURS]:.1f}", f"{len(lengths)} documents of {lengths[0]} to {lengths[-1]} tokens",
        ]
        for name, (value, low, high) in found["gains"].items()
    ]  # fmt: skip
