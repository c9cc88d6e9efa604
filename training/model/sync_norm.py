"""Batch normalisation whose statistics are of all rows that the ranks have at once, and its running statistics.

One process runs torch's own. On several ranks each tells the others mean, variance and number of its values in every
forward, and the sums over them that the gradient needs in every backward; what comes out is that of one process with
all of the rows. torch's SyncBatchNorm does so on GPUs alone, and has the host wait for the device in every layer.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Exchange(Protocol):
    """What ranks tell each other of their statistics; both are called by all ranks, in the same order."""

    def gather(self, mine: Tensor) -> Tensor:
        """Return every rank's tensor, in rank order: (world_size, *mine.shape)."""

    def add_up(self, mine: Tensor) -> Tensor:
        """Return the sum over all ranks, which may take the place of `mine`."""


class SyncBatchNorm(nn.BatchNorm2d):
    """As nn.BatchNorm2d on the rows of all ranks together; the same names in the state dict.

    A rank without a row in a forward gives an empty batch, and still takes part. Where all ranks together have one
    value per channel, it becomes 0 and the variance counts as 0, where torch refuses.
    """

    exchange: Exchange | None = None
    """None: the rows are this process's."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows normalised: (num_rows, num_channels, height, width)."""
        if not self.training or (self.exchange is None and rows.numel() > self.num_features):
            return super().forward(rows)
        mean, variance, count = self._take_in(rows)
        normalised: Tensor = _Normalise.apply(
            rows, self.weight, self.bias, mean, variance, count, self.eps, self.exchange
        )
        return normalised

    @torch.no_grad()
    def _take_in(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and variance, each (num_channels,), and number () of all ranks' values; count them."""
        if rows.shape[0]:
            variance, mean = torch.var_mean(rows.to(self.weight.dtype), (0, 2, 3), correction=0)
        else:
            mean = variance = self.weight.new_zeros(self.num_features)
        count = self.weight.new_full((), rows.numel() // self.num_features)
        if self.exchange is not None:
            everyones = self.exchange.gather(torch.cat([mean, variance, count.reshape(1)]))
            means, variances, counts = everyones.split([len(mean), len(mean), 1], dim=1)
            count = counts.sum()
            shares = counts / count
            mean = (means * shares).sum(0)
            variance = ((variances + (means - mean).square()) * shares).sum(0)
        assert isinstance(self.running_mean, Tensor)
        assert isinstance(self.running_var, Tensor)
        assert self.momentum is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        weight = (count > 0).to(mean.dtype) * self.momentum
        self.running_mean += weight * (mean - self.running_mean)
        self.running_var += weight * (variance * count / (count - 1).clamp(min=1) - self.running_var)
        return mean, variance, count


class _Normalise(torch.autograd.Function):
    """(rows - mean) / deviation x weight + bias, where mean and deviation come of the rows of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
        exchange: Exchange | None,
    ) -> Tensor:
        ctx.save_for_backward(rows, weight, mean, variance, count)
        ctx.eps, ctx.exchange = eps, exchange
        if not rows.shape[0]:
            return torch.empty_like(rows)
        return F.batch_norm(rows, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of what is this rank's; that of weight and bias is of its own rows, as any other."""
        rows, weight, mean, variance, count = ctx.saved_tensors
        for_bias, for_weight = torch.zeros_like(weight), torch.zeros_like(weight)
        inverse = (variance + ctx.eps).rsqrt()
        if rows.shape[0]:
            # As if mean and variance were constants: no gradient of the rows is taken from it. CUDA has its own pair.
            _, for_weight, for_bias = torch.ops.aten.native_batch_norm_backward(
                gradient, rows, weight, mean, variance, mean, inverse, False, ctx.eps, [False, True, True]
            )
        sums = torch.stack([for_bias, for_weight])
        if ctx.exchange is not None:
            sums = ctx.exchange.add_up(sums.clone())
        of_ones, of_normalised = sums / count.clamp(min=1)
        scale = weight * inverse
        slope = scale * inverse * of_normalised
        offset = scale * of_ones - slope * mean
        scale, slope, offset = (part.view(1, -1, 1, 1) for part in (scale, slope, offset))
        for_rows = (gradient * scale - (rows * slope + offset)).to(rows.dtype)
        return for_rows, for_weight, for_bias, None, None, None, None, None


def list_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the running means and variances of a model's batch normalisations, by name; none where it has none."""
    return {
        f"{name}.{kind}": getattr(part, kind)
        for name, part in model.named_modules()
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm)
        for kind in ("running_mean", "running_var")
        if getattr(part, kind) is not None
    }


@contextlib.contextmanager
def keep_statistics(model: nn.Module) -> Iterator[None]:
    """Have the running statistics be after what runs inside what they were before it."""
    layers = [part for part in model.modules() if isinstance(part, SyncBatchNorm)]
    kept = [(part, part.clone()) for layer in layers for part in layer.buffers(recurse=False)]
    try:
        yield
    finally:
        for part, before in kept:
            part.copy_(before)
