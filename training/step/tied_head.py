"""The gradient of an embedding that is also the head, exchanged in two parts: the head's early, the embedding's small.

The head's part is complete when the backward has hardly begun, the embedding's only at its end; DDP waits for their sum
and then exchanges all of it, with nothing left to hide behind (28 % of the bytes of Qwen2-0.5B). Here the head's part
goes over the link while the backward runs, and of the embedding's part only the rows of tokens that the step has: those
of all ranks' micro-batches, which every rank knows from the plan.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from training.data.batches import MicroBatch
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.step.replica import Replica
from training.workloads import Workload

Average = Callable[[Tensor], Future[Tensor]]
"""Begins to replace a tensor by its mean over all ranks; the future says when that is done."""


class TiedHead:
    """Takes the tied weight out of DDP, which has to be built after this."""

    num_exchanges = 2
    """All-reduces per step: the head's part, and the embedding's rows."""

    def __init__(self, replica: Replica, workload: Workload, ranks: Ranks, *, communicates: bool = True) -> None:
        """Raises UnfitModelError if head and embedding of the model are not one matrix."""
        weight = workload.find_tied_weight(replica.module)
        if weight is None:
            raise UnfitModelError(
                "early_tied_head: true, but head and embedding of this model are not one matrix; use false"
            )
        self.num_bytes = weight.numel() * weight.element_size()
        self._weight = weight
        # The same numbers, but a gradient of its own.
        self._head = weight.detach().requires_grad_()
        self._head.register_post_accumulate_grad_hook(self._exchange_head)
        replica.head_weight = self._head
        names = [name for name, part in replica.module.named_parameters(remove_duplicate=False) if part is weight]
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(replica.module, names)
        self._group: Any = ranks.gradient_group
        self._world_size = ranks.world_size
        self.average: Average = self._all_reduce if communicates else _keep
        self._is_last = False
        self._flying: Future[Tensor] | None = None

    def exchange_in_next_backward(self) -> None:
        """Have the head's part exchanged as soon as the next backward has it."""
        self._is_last = True

    def finish(self, micro_batch: MicroBatch) -> int:
        """Leave the whole gradient, averaged over all ranks, in the weight's `grad`; return the bytes exchanged.

        `micro_batch`: any of the step.
        """
        assert self._flying is not None, "the loss does not depend on the head"
        assert self._weight.grad is not None
        assert self._head.grad is not None
        assert micro_batch.step_token_ids is not None, "a micro-batch of no step"
        ids = torch.from_numpy(micro_batch.step_token_ids())
        if self._weight.is_cuda:
            ids = ids.pin_memory().to(self._weight.device, non_blocking=True)
        rows = self._weight.grad.index_select(0, ids)
        flying = self.average(rows)
        for exchange in (self._flying, flying):
            exchange.wait()
        self._weight.grad = self._head.grad.index_add_(0, ids, rows)
        self._head.grad = self._flying = None
        return self.num_bytes + rows.nbytes

    def _exchange_head(self, head: Tensor) -> None:
        if self._is_last:
            assert head.grad is not None
            self._is_last = False
            self._flying = self.average(head.grad)

    def _all_reduce(self, tensor: Tensor) -> Future[Tensor]:
        tensor.div_(self._world_size)
        work: Any = dist.all_reduce(tensor, group=self._group, async_op=True)
        future: Future[Tensor] = work.get_future()
        return future


def _keep(tensor: Tensor) -> Future[Tensor]:
    kept: Future[Tensor] = Future()
    kept.set_result(tensor)
    return kept
