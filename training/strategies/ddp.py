"""DistributedDataParallel: every rank holds the whole model, gradients are averaged once per optimizer step."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.process import torch_private
from training.process.distributed import Ranks
from training.step.ordered_sum import OrderedSum
from training.step.replica import Replica
from training.step.replicated import Replicated
from training.step.statistics import StatisticsExchange, refuse_statistics, share_statistics
from training.step.strategy import StepResult
from training.step.traffic import ALL_REDUCE, STATISTIC, Traffic
from training.strategies import read_options
from training.workloads import Workload

# Buffers of our models are constants, or made alike on all ranks; to broadcast them would be communication for nothing.
# torch 2.15 renames the option.
_PARAMETERS = inspect.signature(DistributedDataParallel.__init__).parameters
_NO_BUFFER_SYNC: Any = {"forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers": False}
_IN_16_BIT = {"bf16": default_hooks.bf16_compress_wrapper, "fp16": default_hooks.fp16_compress_wrapper}

GradientHook = Callable[[Any, dist.GradBucket], Future[Tensor]]
"""A communication hook of DDP, which is given the group of the gradients as its state."""

OPTIONS = {
    "bucket_mib": None,
    "static_graph": False,
    "bucket_view": True,
    "gradient_hook": ("none", "bf16", "fp16"),
}
"""What params.yaml may say under `options` of a cell with this strategy, and the defaults, the first of several words.

bucket_mib: how large a bucket of gradients is (MiB; null: 25 and a first one of 1). static_graph: whether DDP may take
every step for the same graph. bucket_view: whether exchanged gradients stay in the buckets or are copied back.
gradient_hook: the dtype in which gradients are exchanged; none: fp32."""
TAKES_ADAPTERS = True
"""Whether `train.adapter` is for it: all of a model is on every rank, the factors too."""
IS_EXACT = True
"""Whether `train.exact` is for it."""
SYNCS_STATISTICS = True
"""Whether `model.norm: sync_batch` is for it."""

_TIMER_STEPS = 5
_NEVER = 2**30
_TIMED_ANYWAY = 10
"""Steps that DDP times by itself, whatever it is told of those behind them."""
_TIMERS = ("forward_compute", "backward_compute", "backward_comm", "backward_compute_comm_overlap")


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> Replicated:
    """Return the strategy, on any number of ranks; in exact mode it is not DDP that adds up the gradients.

    Where it does not communicate every rank keeps its own gradient: for measuring what communication costs.
    """
    replica = Replica(model, workload, config, ranks.device)
    if config.exact:
        refuse_statistics(model, "exact: true")
        return Replicated(replica, ranks, OrderedSum(replica, ranks))
    return Replicated(replica, ranks, build_step(replica, model, config, ranks, communicates=communicates))


def build_step(
    replica: Replica, model: nn.Module, config: TrainingConfig, ranks: Ranks, *, communicates: bool
) -> "Ddp":
    """Return how such a replica makes a step."""
    options = read_options(OPTIONS, config)
    options["statistics"] = share_statistics(model, ranks, communicates=communicates)
    return Ddp(replica, ranks, hook=choose_hook(model, communicates=communicates), **options)


def choose_hook(model: nn.Module, *, communicates: bool) -> GradientHook | None:
    """Return what exchanges a bucket of gradients, or keeps it; None: as DDP does. Stand-ins of links replace this."""
    return None if communicates else _keep_own


@dataclass
class _Sent:
    """What was exchanged in the present step; apart from Ddp, which DDP's hook would otherwise keep alive for ever."""

    num_bytes: int = 0

    def keep_count(self, hook: GradientHook) -> GradientHook:
        """Return the hook, with what it is given counted."""

        def count(group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
            self.num_bytes += bucket.buffer().nbytes
            return hook(group, bucket)

        return count


class Ddp:
    """Micro-batches are shared out over the ranks; only the last one of a step communicates."""

    def __init__(
        self,
        replica: Replica,
        ranks: Ranks,
        *,
        bucket_mib: float | None = None,
        static_graph: bool = False,
        bucket_view: bool = True,
        gradient_hook: str = "none",
        statistics: StatisticsExchange | None = None,
        hook: GradientHook | None = None,
    ) -> None:
        self.replica = replica
        self._statistics = statistics
        self._world_size = ranks.world_size
        self._group: Any = ranks.gradient_group
        self._wrapped: Any = DistributedDataParallel(
            replica.module,
            process_group=self._group,
            gradient_as_bucket_view=bucket_view,
            bucket_cap_mb=bucket_mib,
            static_graph=static_graph,
            **_NO_BUFFER_SYNC,
        )
        torch_private.time_steps_of_ddp(self._wrapped, every=_NEVER)
        self._rebuilt_bucket_bytes: list[int] = []
        self._sent: _Sent | None = None
        if gradient_hook in _IN_16_BIT:
            self._sent = _Sent()
            # Inside the conversion: what is counted is what the all-reduce is given.
            hook = _IN_16_BIT[gradient_hook](self._sent.keep_count(hook or default_hooks.allreduce_hook))
        if hook is not None:
            self._wrapped.register_comm_hook(self._group, hook)

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        before = self._count_collectives()
        if self._sent is not None:
            self._sent.num_bytes = 0
        if self._statistics is not None:
            self._statistics.take_traffic()
        # DDP averages over ranks, the loss is a mean over labels: undo the division by the number of ranks.
        weight = self._world_size / max(num_targets, 1)
        self._run(micro_batches, weight=weight)
        num_all_reduces = self._count_collectives() - before
        loss_sum, grad_norm = self.replica.step(learning_rate)
        traffic = {ALL_REDUCE: Traffic(num_all_reduces, self._count_bytes(num_all_reduces))}
        if self._statistics is not None:
            traffic[STATISTIC] = self._statistics.take_traffic()
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=traffic)

    def _run(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Leave the averaged gradient of a step's micro-batches."""
        *earlier, last = micro_batches
        with self.replica.keep_casts():
            # Around forward too: DDP decides there whether the backward will communicate.
            with self._wrapped.no_sync():
                for micro_batch in earlier:
                    self.replica.add(self._wrapped, micro_batch, weight=weight)
            self.replica.add(self._wrapped, last, weight=weight)

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and all-reduce, at first twice: DDP fixes its buckets in between. Change nothing."""
        for micro_batches in self.replica.generate_warm_up_steps(micro_batch, begins_alone=True):
            self._run(micro_batches, weight=0.0)
            self.replica.forget_gradient()
        # From here on DDP times no step by itself: in each that it does, the host waits for what the one before it
        # recorded. It notes its final buckets in a step that it times.
        self._wrapped.logger.set_runtime_stats_and_log()
        for _ in range(_TIMED_ANYWAY):
            self._wrapped.reducer.prepare_for_forward()

    def describe(self) -> dict[str, Any]:
        """Return `bucket_bytes`: of gradient (fp32) in each bucket. DDP builds them anew after the first step.

        With batch normalisation also `statistic_channels` of each layer.
        """
        more = {} if self._statistics is None else {"statistic_channels": self._statistics.channels}
        return {"bucket_bytes": self._bucket_bytes, **more}

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the seconds that DDP times itself, mean of a few runs of a step; {} if it times none.

        DDP's own averages go back to its first step, which is no step like the others.
        """
        torch_private.time_steps_of_ddp(self._wrapped, every=1)
        # What it tells in a step is of the one before, of which it timed nothing so far.
        run()
        found = []
        for _ in range(_TIMER_STEPS):
            run()
            found.append(torch_private.read_facts_of_ddp(self._wrapped))
        torch_private.time_steps_of_ddp(self._wrapped, every=_NEVER)
        if not all(facts.get("backward_comm_time") for facts in found):
            return {}
        return {name: sum(facts.get(f"{name}_time", 0) for facts in found) / len(found) / 1e9 for name in _TIMERS}

    @property
    def _bucket_bytes(self) -> list[int]:
        if not self._rebuilt_bucket_bytes:
            facts = torch_private.read_facts_of_ddp(self._wrapped)
            if "rebuilt_bucket_sizes" not in facts:
                return _parse_numbers(facts["bucket_sizes"])
            self._rebuilt_bucket_bytes = _parse_numbers(facts["rebuilt_bucket_sizes"])
        return self._rebuilt_bucket_bytes

    def _count_bytes(self, num_all_reduces: int) -> int:
        """Return the bytes of so many all-reduces: DDP reduces its buckets one after another, then begins anew."""
        if self._sent is not None:
            return self._sent.num_bytes
        buckets = self._bucket_bytes
        whole, rest = divmod(num_all_reduces, len(buckets))
        return whole * sum(buckets) + sum(buckets[:rest])

    def _count_collectives(self) -> int:
        """Return how many collectives the group of the gradients has begun: counted by torch, not by us."""
        return torch_private.count_begun(self._group)


def _keep_own(_: object, bucket: dist.GradBucket) -> Future[Tensor]:
    kept: Future[Tensor] = Future()
    kept.set_result(bucket.buffer())
    return kept


def _parse_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
