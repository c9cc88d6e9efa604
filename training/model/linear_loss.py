"""Cross-entropy behind a linear layer, in chunks of rows: the logits of all rows are never in memory at once.

With a vocabulary of 152 thousand the fp32 logits of 8,192 tokens are 5 GB, several times over. Here those of a chunk
are made, turned into its loss and its gradients while they are at hand, and dropped: three matrix products, as without
chunks, and no second forward. Nothing here waits for the device.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.process.torch_private import allow_any_length

DEFAULT_CHUNK_ROWS = 2048
"""Rows of logits that exist at once; of fewer, the matrix products become too small to be fast."""
_ROWS_TOGETHER = 128
"""Where there are fewer rows than in a chunk, there is memory for a multiple of so many."""


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    chunk_rows: int = DEFAULT_CHUNK_ROWS,
    scale: Tensor | None = None,
    is_compiled: bool = False,
) -> Tensor:
    """Return the summed cross-entropy (nats) of `hidden @ weight.T` against the targets: () float32.

    hidden: (num_rows, hidden_size); weight: (vocab_size, hidden_size); targets: (num_rows,) int64, none ignored. Under
    autocast the products are computed in its dtype, the loss in fp32, and the weight's gradient is added up in the
    weight's own dtype. `scale`, () float32: what the loss will be multiplied by before the backward, where that is
    known: 16-bit gradients are then rounded after it, as without chunks. Any other factor is as right. `is_compiled`:
    what lies between the products, where a gradient is wanted, reads the logits twice and writes them once.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    if scale is None:
        scale = hidden.new_ones((), dtype=torch.float32)
    # A warm-up weighs nothing: its gradients are then those of a weight of 1, times 0.
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    # What needs a gradient is asked of the tensors alone, not whether anybody is going to want one.
    weight = weight if torch.is_grad_enabled() else weight.detach()
    with torch.autocast(kind, enabled=False):
        loss: Tensor = _Chunked.apply(hidden, weight, targets, scale, chunk_rows, dtype, is_compiled)
    return loss


def _compute_softmax(logits: Tensor, *, out: Tensor) -> Tensor:
    """Return the softmax of each row, in fp32, in the memory of `out`."""
    if logits.dtype == torch.bfloat16:
        # By itself torch would turn bf16 into fp32 in memory of its own, as large as this. A row's results are written
        # when all of it is read.
        return torch.softmax(out.copy_(logits), dim=-1, out=out)
    return torch.softmax(logits, dim=-1, dtype=torch.float32, out=out)


def _turn_into_gradient(logits: Tensor, places: Tensor, scale: Tensor) -> Tensor:
    """Return the loss of each row, (num_rows, 1) float32; its gradient x `scale` is then in place of the logits."""
    numbers = logits.float()
    highest = numbers.amax(dim=-1, keepdim=True)
    powers = (numbers - highest).exp()
    total = powers.sum(dim=-1, keepdim=True)
    losses = highest - numbers.gather(1, places) + total.log()
    is_target = torch.arange(logits.shape[1], device=logits.device) == places
    logits.copy_((powers / total - is_target.float()) * scale)
    return losses


@cache
def _compile_turn() -> Callable[..., Tensor]:
    """Return `_turn_into_gradient` as two kernels, compiled at its first call for any number of rows."""
    return torch.compile(_turn_into_gradient)


def adds_in_fp32(device: torch.device) -> bool:
    """Return whether a product of 16-bit matrices is added to an fp32 one without being rounded: by cuBLAS."""
    return device.type == "cuda"


def _compute_by_parts(logits: Tensor, places: Tensor, scale: Tensor | None, memory: list[Tensor]) -> Tensor:
    """Return the summed loss of a chunk; with a scale, the gradient is then in place of its logits."""
    highest, wanted = logits.amax(dim=-1).float(), logits.gather(1, places)[:, 0].float()
    probabilities = _compute_softmax(logits, out=memory[1][: len(places)])
    # The probability of a target may be too small for fp32, the highest of a row is not.
    # In this order: where the target is the likeliest, the first difference is 0 and the rest keeps its digits.
    loss_sum = (highest - wanted - probabilities.amax(dim=-1).log()).sum()
    if scale is not None:
        probabilities.scatter_add_(1, places, -torch.ones_like(places, dtype=torch.float32))
        # Rounded once, while it is written.
        torch.mul(probabilities, scale, out=logits)
    return loss_sum


def _compute_at_once(logits: Tensor, places: Tensor, scale: Tensor | None, memory: list[Tensor]) -> Tensor:
    """Return and leave the same by `_turn_into_gradient`, compiled."""
    # A last chunk of one row would be compiled for by itself: rows that are nobody's are computed beside it.
    num_rows = min(len(memory[0]), _round_up(len(places)))
    whole, all_places = memory[0][:num_rows], F.pad(places, (0, 0, 0, num_rows - len(places)))
    for part in (whole, all_places):
        allow_any_length(part)
    return _compile_turn()(whole, all_places, scale)[: len(places)].sum()


def _add_product(total: Tensor | None, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the total, in that dtype, with left @ right added to it in place."""
    if dtype == torch.float32 != left.dtype and adds_in_fp32(left.device):
        if total is None:
            return torch.mm(left, right, out_dtype=dtype)
        return torch.addmm(total, left, right, out_dtype=dtype, out=total)
    if total is None:
        return (left @ right).to(dtype)
    if dtype == left.dtype:
        return total.addmm_(left, right)
    total += left @ right
    return total


def _round_up(num_rows: int) -> int:
    return -(-num_rows // _ROWS_TOGETHER) * _ROWS_TOGETHER


class _Chunked(torch.autograd.Function):
    """The gradients are made in the forward, for a loss that is multiplied by `scale`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        scale: Tensor,
        chunk_rows: int,
        dtype: torch.dtype,
        is_compiled: bool,
    ) -> Tensor:
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        needs_any = needs_hidden or needs_weight
        inputs, matrix = hidden.to(dtype), weight.to(dtype)
        loss_sum = hidden.new_zeros((), dtype=torch.float32)
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight: Tensor | None = None
        # For all chunks: on a CPU fresh memory costs as much as what is computed in it. Of few sizes, whatever the
        # number of rows: on a GPU memory of sizes that change is cut into pieces that nobody can use.
        shape = (min(chunk_rows, _round_up(len(targets))), len(weight))
        compute = _compute_at_once if is_compiled and needs_any else _compute_by_parts
        memory = [inputs.new_empty(shape)]
        if compute is _compute_by_parts:
            memory.append(inputs.new_empty(shape, dtype=torch.float32))
        for start in range(0, len(targets), chunk_rows):
            rows = slice(start, start + chunk_rows)
            places = targets[rows, None]
            logits = torch.mm(inputs[rows], matrix.t(), out=memory[0][: len(places)])
            loss_sum += compute(logits, places, scale if needs_any else None, memory)
            if of_hidden is not None:
                of_hidden[rows] = logits @ matrix
            if needs_weight:
                of_weight = _add_product(of_weight, logits.t(), inputs[rows], weight.dtype)
        if needs_weight and of_weight is None:
            of_weight = torch.zeros_like(weight)
        ctx.save_for_backward(of_hidden, of_weight, scale)
        return loss_sum

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight, scale = ctx.saved_tensors
        # 1 where the loss was multiplied as was said.
        factor = gradients[0] / scale
        scaled = [None if part is None else part.mul_(factor) for part in (of_hidden, of_weight)]
        return *scaled, None, None, None, None, None
