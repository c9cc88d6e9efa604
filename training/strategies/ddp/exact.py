"""Ddp in exact mode: gradients are gathered and added in one order, whatever the number of ranks."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from training.data.batches import MicroBatch
from training.process.failure import RanksDisagreeError
from training.process.heartbeat import StepSection
from training.step.strategy import StepResult, Strategy
from training.step.traffic import ALL_GATHER

_PARCEL_BYTES = 2**25
"""Of gradients that travel together, unless one alone has more."""


class ExactDdp(Strategy):
    """Exact mode on several ranks: weights that do not depend on their number, to the bit.

    A sum of floats depends on the order of its terms. So every micro-batch's gradient goes to every rank, and every
    rank adds them from the step's last micro-batch to its first, which is the order in which one rank alone runs them.
    All else is the same on any number of ranks anyway: the micro-batches, their shapes, and what is done with the sum.

    Beside the gradient of its own micro-batch, a rank holds the sum so far and, of itself and each of the N ranks, one
    parcel: 32 MiB, or the largest parameter where that is more.
    """

    name = "ddp"

    def set_up(self) -> None:
        """Share the gradient out."""
        sizes = [part.numel() * part.element_size() for part in self.replica.parameters]
        self._parcels = list(split_into_parcels(sizes))

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy. Raises RanksDisagreeError if the ranks' order is not one rank's order."""
        self._sent.take()
        mine = [-1 if part.place is None else part.place for part in micro_batches]
        places = self._ranks.gather(mine).astype(int)
        order = [[rank for rank in np.argsort(-turn).tolist() if turn[rank] >= 0] for turn in places.T]
        added = [int(places[rank, turn]) for turn, in_order in enumerate(order) for rank in in_order]
        if added != list(reversed(range(len(added)))):
            raise RanksDisagreeError(f"exact: micro-batches would be added in the order {added}; needed: descending")
        self._accumulate_gradient(micro_batches, weight=1 / max(num_targets, 1), order=order)
        loss_sum, grad_norm = self.replica.optimizer_step(learning_rate)
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=self._sent.take())

    def _accumulate_gradient(
        self, micro_batches: Sequence[MicroBatch], *, weight: float, order: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Leave the sum of all ranks' gradients; `order`: of the ranks, for each micro-batch."""
        total: list[Tensor] = []
        for micro_batch, ranks in zip(
            micro_batches, order or [range(self._ranks.world_size)] * len(micro_batches), strict=True
        ):
            self.replica.forward_backward(self.module, micro_batch, weight=weight)
            total = self._add_gradients(total, self.replica.take_gradient(), ranks)
        self.replica.put_gradient(total)

    def describe(self) -> dict[str, Any]:
        """Return `num_parcels`: in how many gathers a gradient travels."""
        return {"num_parcels": len(self._parcels)}

    def _add_gradients(self, total: list[Tensor], mine: list[Tensor], ranks_in_order: Sequence[int]) -> list[Tensor]:
        """Return the sum with the ranks' gradients added to it, one after another."""
        results: list[Tensor] = []
        for parcel in self._parcels:
            parts = mine[parcel]
            flat = torch.cat([part.reshape(-1) for part in parts])
            self.replica.on_section(StepSection.COLLECTIVE)
            everyones = flat.new_empty(self._ranks.world_size, flat.numel())
            dist.all_gather(list(everyones.unbind()), flat, group=self._group)
            self._sent.count(ALL_GATHER, flat)
            sums = total[parcel]
            for rank in ranks_in_order:
                pieces = everyones[rank].split([part.numel() for part in parts])
                theirs = [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
                if sums:
                    torch._foreach_add_(sums, theirs)
                else:
                    # Tensors of their own: on CUDA the gradient's norm is summed in an order that depends on where in
                    # memory a tensor begins.
                    sums = [part.clone() for part in theirs]
            results += sums
        return results


def split_into_parcels(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield which gradients, of these sizes in bytes, travel together: neighbours, up to a limit or one alone."""
    start = num_bytes = 0
    for index, size in enumerate(sizes):
        if index > start and num_bytes + size > _PARCEL_BYTES:
            yield slice(start, index)
            start, num_bytes = index, 0
        num_bytes += size
    yield slice(start, len(sizes))
