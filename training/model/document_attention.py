"""Attention document by document on a CPU as one operator, so that a compiler need not know how long documents are.

The kernels are those that torch's scaled_dot_product_attention takes there.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_to_documents(query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, scaling: float | None) -> Tensor:
    """Return (1, length, heads, head_dim) for tensors of (1, heads, length, head_dim); keys may have fewer heads.

    `boundaries`, (num_documents + 1,) int32 on the CPU: where each document begins, and the length of the sequence.
    """
    attended: Tensor = _attend(query, key, value, boundaries, scaling)[0]
    return attended


def _split(boundaries: Tensor, *tensors: Tensor, dim: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield each document's part of every tensor; of a document without a position there is none."""
    ends = boundaries.tolist()
    lengths = [end - start for start, end in itertools.pairwise(ends) if end > start]
    yield from zip(*(tensor.split(lengths, dim) for tensor in tensors), strict=True)


@torch.library.custom_op("ddp_compare::attend_to_documents", mutates_args=(), device_types="cpu")
def _attend(
    query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Return what is attended to, and the logarithms of sums that the backward needs: (1, heads, length) float32."""
    found = [_KERNEL(*part, 0.0, True, scale=scaling) for part in _split(boundaries, query, key, value, dim=2)]
    attended = torch.cat([part.transpose(1, 2) for part, _ in found], dim=1)
    return attended, torch.cat([sums for _, sums in found], dim=2).contiguous()


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
    batch, heads, length, size = query.shape
    return query.new_empty(batch, length, heads, size), query.new_empty(batch, heads, length, dtype=torch.float32)


@torch.library.custom_op("ddp_compare::attend_to_documents_backward", mutates_args=(), device_types="cpu")
def _go_back(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attended: Tensor,
    sums: Tensor,
    boundaries: Tensor,
    scaling: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, each (1, heads, length, head_dim)."""
    gradient, attended = gradient.transpose(1, 2), attended.transpose(1, 2)
    parts = _split(boundaries, gradient, query, key, value, attended, sums, dim=2)
    found = [_BACKWARD_KERNEL(*part, 0.0, True, scale=scaling) for part in parts]
    of_query, of_key, of_value = (torch.cat(each, dim=2).contiguous() for each in zip(*found, strict=True))
    return of_query, of_key, of_value


@_go_back.register_fake
def _(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    of_query, of_key, of_value = (part.new_empty(part.shape) for part in (query, key, value))
    return of_query, of_key, of_value


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, boundaries, ctx.scaling = inputs
    ctx.save_for_backward(query, key, value, *output, boundaries)


def _compute_gradients(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    return *_go_back(gradient, *ctx.saved_tensors, ctx.scaling), None, None


_attend.register_autograd(_compute_gradients, setup_context=_keep)
