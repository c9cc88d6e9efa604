"""DistributedDataParallel: every rank holds the whole model, gradients are averaged once per optimizer step."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from training.data.batches import MicroBatch
from training.model.sync_norm import SyncBatchNorm, list_statistics
from training.process import torch_private
from training.process.distributed import Ranks
from training.step.strategy import StepResult, Strategy
from training.step.traffic import ALL_REDUCE, STATISTIC, Sent, Traffic
from training.strategies.ddp.exact import ExactDdp

# Buffers of our models are constants, or made alike on all ranks; to broadcast them would be communication for nothing.
# torch 2.15 renames the option.
_PARAMETERS = inspect.signature(DistributedDataParallel.__init__).parameters
_NO_BUFFER_SYNC: Any = {"forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers": False}
_IN_16_BIT = {"bf16": default_hooks.bf16_compress_wrapper, "fp16": default_hooks.fp16_compress_wrapper}

GradientHook = Callable[[Any, dist.GradBucket], Future[Tensor]]
"""A communication hook of DDP, which is given the group of the gradients as its state."""

_TIMER_STEPS = 5
_NEVER = 2**30
_TIMED_ANYWAY = 10
"""Steps that DDP times by itself, whatever it is told of those behind them."""
_TIMERS = ("forward_compute", "backward_compute", "backward_comm", "backward_compute_comm_overlap")


def choose_hook(model: nn.Module, *, communicates: bool) -> GradientHook | None:
    """Return what exchanges a bucket of gradients, or keeps it; None: as DDP does. Stand-ins of links replace this."""
    return None if communicates else _keep_own


class Ddp(Strategy):
    """Micro-batches are shared out over the ranks; only the last one of a step communicates."""

    name = "ddp"
    in_exact_mode = ExactDdp
    begins_alone = True

    def set_up(self) -> None:
        """Wrap the model; where ranks do not communicate each keeps its own gradient."""
        model, options = self.module, self._options
        self._statistics = share_statistics(model, self._ranks, self._sent, communicates=self._communicates)
        self._wrapped: Any = DistributedDataParallel(
            model,
            process_group=self._group,
            gradient_as_bucket_view=options["bucket_view"],
            bucket_cap_mb=options["bucket_mib"],
            static_graph=options["static_graph"],
            **_NO_BUFFER_SYNC,
        )
        torch_private.time_steps_of_ddp(self._wrapped, every=_NEVER)
        self._rebuilt_bucket_bytes: list[int] = []
        hook = choose_hook(model, communicates=self._communicates)
        self._is_in_16_bit = options["gradient_hook"] in _IN_16_BIT
        if self._is_in_16_bit:
            # Inside the conversion: what is counted is what the all-reduce is given.
            hook = _IN_16_BIT[options["gradient_hook"]](_count(self._sent, hook or default_hooks.allreduce_hook))
        if hook is not None:
            self._wrapped.register_comm_hook(self._group, hook)

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        before = torch_private.count_begun(self._group)
        self._sent.take()
        # DDP averages over ranks, the loss is a mean over labels: undo the division by the number of ranks.
        self._accumulate_gradient(micro_batches, weight=self.data_world_size / max(num_targets, 1))
        # Counted by torch, not by us.
        number = torch_private.count_begun(self._group) - before
        loss_sum, grad_norm = self.replica.optimizer_step(learning_rate)
        self._send_weights()
        if self._is_in_16_bit:
            num_bytes = self._sent.counts[ALL_REDUCE].num_bytes
        else:
            # DDP reduces its buckets one after another, then begins anew.
            whole, rest = divmod(number, len(self._bucket_bytes))
            num_bytes = whole * sum(self._bucket_bytes) + sum(self._bucket_bytes[:rest])
        traffic = {**self._sent.take(), ALL_REDUCE: Traffic(number, num_bytes)}
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=traffic)

    def _accumulate_gradient(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Leave the averaged gradient of a step's micro-batches."""
        *earlier, last = micro_batches
        with self.replica.keep_casts():
            # Around forward too: DDP decides there whether the backward will communicate.
            with self._wrapped.no_sync():
                for micro_batch in earlier:
                    self.replica.forward_backward(self._wrapped, micro_batch, weight=weight)
            self.replica.forward_backward(self._wrapped, last, weight=weight)

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and all-reduce, at first twice: DDP fixes its buckets in between. Change nothing."""
        super().warm_up(micro_batch)
        # Past the first steps, which DDP always times: the host waits in each for the events of the one before. Once it
        # is to be timed, so that the rebuilt buckets are noted.
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
        results = []
        for _ in range(_TIMER_STEPS):
            run()
            results.append(torch_private.read_facts_of_ddp(self._wrapped))
        torch_private.time_steps_of_ddp(self._wrapped, every=_NEVER)
        if not all(facts.get("backward_comm_time") for facts in results):
            return {}
        return {name: sum(facts.get(f"{name}_time", 0) for facts in results) / len(results) / 1e9 for name in _TIMERS}

    @property
    def _bucket_bytes(self) -> list[int]:
        if not self._rebuilt_bucket_bytes:
            facts = torch_private.read_facts_of_ddp(self._wrapped)
            if "rebuilt_bucket_sizes" not in facts:
                return _parse_numbers(facts["bucket_sizes"])
            self._rebuilt_bucket_bytes = _parse_numbers(facts["rebuilt_bucket_sizes"])
        return self._rebuilt_bucket_bytes


def _count(sent: Sent, hook: GradientHook) -> GradientHook:
    """Return the hook with its bytes counted. No method: DDP never releases its hook, which would keep a Ddp."""

    def count(group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        sent.count(ALL_REDUCE, bucket.buffer())
        return hook(group, bucket)

    return count


def _keep_own(_: object, bucket: dist.GradBucket) -> Future[Tensor]:
    kept: Future[Tensor] = Future()
    kept.set_result(bucket.buffer())
    return kept


def _parse_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


class StatisticsExchange:
    """What the layers of a model exchange; beside the gradients' group, whose collectives wait for each other."""

    def __init__(self, model: nn.Module, ranks: Ranks, sent: Sent) -> None:
        """Have the model's layers use it; to be called by all ranks."""
        self._sent = sent
        layers = [part for part in model.modules() if isinstance(part, SyncBatchNorm)]
        self.channels = [part.num_features for part in layers]
        """Of each layer, in the order of the model."""
        if not ranks.counted_groups:
            ranks.counted_groups.append(ranks.join_group([range(ranks.world_size)]))
        self._group = ranks.counted_groups[0]
        self._world_size = ranks.world_size
        for part in layers:
            part.exchange = self

    def gather(self, mine: Tensor) -> Tensor:
        """Return every rank's tensor; see Exchange."""
        self._sent.count(STATISTIC, mine)
        everyones = mine.new_empty(self._world_size, *mine.shape)
        dist.all_gather(list(everyones.unbind()), mine, group=self._group)
        return everyones

    def add_up(self, mine: Tensor) -> Tensor:
        """Return the sum over all ranks; see Exchange."""
        self._sent.count(STATISTIC, mine)
        dist.all_reduce(mine, group=self._group)
        return mine


def share_statistics(model: nn.Module, ranks: Ranks, sent: Sent, *, communicates: bool) -> StatisticsExchange | None:
    """Have batch normalisation be over all ranks' rows; None where there is none, or one rank."""
    is_needed = communicates and ranks.world_size > 1 and bool(list_statistics(model))
    return StatisticsExchange(model, ranks, sent) if is_needed else None


STRATEGY = Ddp
