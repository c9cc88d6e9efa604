"""Attention in a sequence of several documents, each of which sees itself alone.

On CUDA in 16 bit by the variable-length kernel of torch, which takes all documents at once; elsewhere document by
document.

On a CPU that was 1.9 to 5.7 times as fast as one call with a block-diagonal mask, which computes blocks that
nobody looks at, and 1.1 to 1.9 times as fast as a call on documents padded to one length (docs/performance.md).
"""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.process.failure import UnfitModelError

NAME = "documents"
"""What transformers knows it by."""
_NOT_COMPUTED = ("softcap", "s_aux", "position_bias", "head_mask")
"""A cap on scores (Gemma 2), sinks (gpt-oss), biases by distance, heads that are switched off."""


def refuse_what_is_not_computed(module: torch.nn.Module, asked: Mapping[str, Any]) -> None:
    """Raise UnfitModelError for what a model asks of attention beside its arguments, and would not get.

    With weights that are small, as random ones are, a model gives nearly the same without, so that no trial shows it.
    """
    if missing := [name for name in _NOT_COMPUTED if asked.get(name) is not None]:
        raise UnfitModelError(
            f"packing: true, but {type(module).__name__} cannot: attention within packed rows has no {missing[0]}; use "
            "packing: false"
        )


@cache
def supports_grouped_heads() -> bool:
    """Return whether the kernel takes fewer heads of keys than of queries, which torch 2.11's does not.

    To be asked outside of what is compiled.
    """
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    document_lengths: Sequence[int] | None = None,
    document_boundaries: Tensor | None = None,
    longest_document: int = 0,
    takes_groups: bool = False,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return (batch, length, heads, head_dim) for transformers; query: (batch, heads, length, head_dim).

    The one sequence of a packed batch is described by the lengths of its documents, in order; or for the
    variable-length kernel by `document_boundaries`, (num_documents + 1,) int32 on the device, the longest one's length
    and what `supports_grouped_heads` said. Without either every sequence is one document.
    """
    assert attention_mask is None, "a mask would be ignored"
    refuse_what_is_not_computed(module, others)
    if document_boundaries is not None:
        assert dropout == 0.0, "the kernel has no dropout"
        from torch.nn.attention.varlen import varlen_attn

        # The kernel is not one that autocast knows.
        dtype = torch.get_autocast_dtype("cuda")
        q, k, v = (part.squeeze(0).transpose(0, 1).to(dtype) for part in (query, key, value))
        options: dict[str, Any] = {"scale": scaling, "window_size": (-1, 0)}
        if (groups := q.shape[1] // k.shape[1]) > 1:
            if takes_groups:
                options["enable_gqa"] = True
            else:
                k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        ends, longest = document_boundaries, longest_document
        attended: Any = varlen_attn(q, k, v, ends, ends, longest, longest, **options)
        return attended.unsqueeze(0), None
    if document_lengths is not None:
        parts = zip(
            query.split(document_lengths, 2),
            key.split(document_lengths, 2),
            value.split(document_lengths, 2),
            strict=True,
        )
        documents = [_attend_causally(*part, dropout=dropout, scaling=scaling).transpose(1, 2) for part in parts]
        return torch.cat(documents, dim=1), None
    return _attend_causally(query, key, value, dropout=dropout, scaling=scaling).transpose(1, 2).contiguous(), None


def _attend_causally(query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value,
        dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
