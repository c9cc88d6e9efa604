"""DistributedDataParallel: every rank holds the whole model, gradients are averaged once per optimizer step."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from training.config import TrainingConfig
from training.data import MicroBatch
from training.distributed import Ranks
from training.ordered_sum import OrderedSum
from training.replica import Replica
from training.strategies import StepResult, Strategy
from training.workloads import Workload

GradientHook = Callable[[object, dist.GradBucket], Future[Tensor]]

# Buffers of our models are constants; broadcasting them before every forward would be communication for nothing.
# torch 2.15 renames the option.
_PARAMETERS = inspect.signature(DistributedDataParallel.__init__).parameters
_NO_BUFFER_SYNC: Any = {"forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers": False}


OPTIONS = {"bucket_mib": None, "static_graph": False}
"""What params.yaml may say under `options` of a cell with this strategy, and the defaults: how large a bucket of
gradients is (MiB; null: 25 and a first one of 1), and whether DDP may take every step for the same graph."""


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> Strategy:
    """Return the strategy, on any number of ranks; in exact mode it is not DDP that adds up the gradients.

    Where it does not communicate every rank keeps its own gradient: for measuring what communication costs.
    """
    replica = Replica(model, workload, config, ranks.device)
    if config.exact:
        return OrderedSum(replica, ranks)
    options: dict[str, Any] = {**OPTIONS, **config.options}
    emulated = getattr(workload, "bucket_mib", None)
    if emulated is not None:
        # A workload that emulates a device has far smaller gradients than it says.
        options["bucket_mib"] = emulated(model, options["bucket_mib"])
    return Ddp(replica, ranks, hook=_hook(model, workload, communicates=communicates), **options)


def _hook(model: nn.Module, workload: Workload, *, communicates: bool) -> GradientHook | None:
    """Return what exchanges a bucket of gradients, None: DDP's own all-reduce.

    A workload that emulates a device offers a hook that emulates its links.
    """
    emulated = getattr(workload, "gradient_hook", None)
    if emulated is not None:
        hook: GradientHook = emulated(model, communicates=communicates)
        return hook
    return None if communicates else _keep_own


class Ddp:
    """Micro-batches are shared out over the ranks; only the last one of a step communicates."""

    def __init__(
        self,
        replica: Replica,
        ranks: Ranks,
        *,
        bucket_mib: float | None,
        static_graph: bool,
        hook: GradientHook | None = None,
    ) -> None:
        self.replica = replica
        self._world_size = ranks.world_size
        self._group: Any = ranks.gradient_group
        self._wrapped = DistributedDataParallel(
            replica.module,
            process_group=self._group,
            gradient_as_bucket_view=True,
            bucket_cap_mb=bucket_mib,
            static_graph=static_graph,
            **_NO_BUFFER_SYNC,
        )
        if hook is not None:
            self._wrapped.register_comm_hook(self._group, hook)
        self._rebuilt_bucket_bytes: list[int] = []

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_tokens: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        before = self._num_collectives()
        # DDP averages over ranks, the loss is a mean over tokens: undo the division by the number of ranks.
        weight = self._world_size / max(num_tokens, 1)
        *earlier, last = micro_batches
        # Around forward too: DDP decides there whether the backward will communicate.
        with self._wrapped.no_sync():
            for micro_batch in earlier:
                self.replica.add(self._wrapped, micro_batch, weight=weight)
        self.replica.add(self._wrapped, last, weight=weight)
        num_all_reduces = self._num_collectives() - before
        loss_sum, grad_norm = self.replica.step(learning_rate)
        return StepResult(
            loss_sum=loss_sum,
            grad_norm=grad_norm,
            num_all_reduces=num_all_reduces,
            num_all_reduce_bytes=_bytes_of(num_all_reduces, self.gradient_bucket_bytes),
        )

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and all-reduce twice, change nothing; DDP fixes its buckets in between."""
        for _ in range(2):
            self.replica.add(self._wrapped, micro_batch, weight=0.0)
            self.replica.forget_gradient()

    @property
    def gradient_bucket_bytes(self) -> list[int]:
        """Bytes of each of DDP's buckets, as DDP reports them; it builds them anew after the first step."""
        if not self._rebuilt_bucket_bytes:
            facts: Any = self._wrapped._get_ddp_logging_data()
            if "rebuilt_bucket_sizes" not in facts:
                return _numbers_in(facts["bucket_sizes"])
            self._rebuilt_bucket_bytes = _numbers_in(facts["rebuilt_bucket_sizes"])
        return self._rebuilt_bucket_bytes

    def _num_collectives(self) -> int:
        """Return how many collectives the group of the gradients has begun: counted by torch, not by us."""
        return int(self._group._get_sequence_number_for_group())


def _keep_own(_: object, bucket: dist.GradBucket) -> Future[Tensor]:
    kept: Future[Tensor] = Future()
    kept.set_result(bucket.buffer())
    return kept


def _bytes_of(num_all_reduces: int, bucket_bytes: list[int]) -> int:
    """Return the bytes of so many all-reduces: DDP reduces its buckets one after another, then begins anew."""
    whole, rest = divmod(num_all_reduces, len(bucket_bytes))
    return whole * sum(bucket_bytes) + sum(bucket_bytes[:rest])


def _numbers_in(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
