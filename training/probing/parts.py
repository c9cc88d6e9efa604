"""What a prediction starts from, beside the link (training/probing/sweep.py): the parts of a step, each timed alone.

A clock is read when the device is done. The weights stay as they are.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from training.data.batches import MicroBatch
from training.probing.sweep import make_buffer, measure_seconds
from training.process.distributed import Ranks
from training.step.replica import Replica

_LONGER = 1.5
"""How much longer than the backward beside them all-reduces are to be in flight."""


def probe_compute(
    replica: Replica,
    ranks: Ranks,
    micro_batches: Sequence[MicroBatch],
    *,
    num_repeats: int,
    on_start: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return the seconds of each part of a step of the plain module on one rank.

    `on_start` is called whenever a clock is about to start. `forward_seconds` and `backward_seconds` go by repeat, then
    by micro-batch; by repeat: `optimizer_seconds` (clipping included) and `fixed_seconds`: a whole step - its
    micro-batches - its optimizer, below 0 where timing the parts one by one costs more. `gradients`: per parameter, in
    the order in which they are ready in the backward of the last micro-batch, its `name`, `num_bytes` and `ready`, the
    share of that backward after which it is. Raises ValueError on several ranks.
    """
    if ranks.world_size > 1:
        raise ValueError(f"world_size={ranks.world_size}; allowed: 1, whose parts are those of every rank alone")
    weight = 1 / max(sum(part.num_targets for part in micro_batches), 1)
    parts, optimizer, whole = [], [], []
    for _ in range(num_repeats):
        on_start()
        # Not timed: what the first forward after an update costs more belongs to the step, not to a micro-batch.
        replica.add(replica.module, micro_batches[0], weight=weight)
        parts.append([_time_forward_backward(replica, ranks, part, weight=weight) for part in micro_batches])
        optimizer.append(measure_seconds(lambda: replica.step(0.0), ranks))
        on_start()
        whole.append(measure_seconds(lambda: _run_plain_step(replica, micro_batches, weight=weight), ranks))
    seconds, optimizer_seconds = np.array(parts), np.array(optimizer)
    return {
        "forward_seconds": seconds[..., 0].tolist(),
        "backward_seconds": seconds[..., 1].tolist(),
        "optimizer_seconds": optimizer,
        "fixed_seconds": (np.array(whole) - seconds.sum(axis=(1, 2)) - optimizer_seconds).tolist(),
        "gradients": _time_gradients(
            replica, ranks, micro_batches[-1], weight=weight, num_repeats=num_repeats, on_start=on_start
        ),
    }


def probe_buckets(bucket_bytes: Sequence[int], gradients: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is in each of a strategy's buckets, given their bytes after warm_up and probe_compute's `gradients`.

    Per bucket, in the order of their exchange: `num_bytes`, `ready` (when the last of its parameters is) and
    `parameters`, their names. DDP fills its buckets in the order in which the gradients became ready. Raises ValueError
    if the bytes do not fit that order.
    """
    ends = np.cumsum([part["num_bytes"] for part in gradients]).tolist()
    buckets, first = [], 0
    for end in np.cumsum(bucket_bytes).tolist():
        if end not in ends[first:]:
            break
        last = ends.index(end)
        held = gradients[first : last + 1]
        buckets.append(
            {
                "num_bytes": sum(part["num_bytes"] for part in held),
                "ready": max(part["ready"] for part in held),
                "parameters": [part["name"] for part in held],
            }
        )
        first = last + 1
    if len(buckets) < len(bucket_bytes) or first < len(gradients):
        raise ValueError(
            f"bucket {len(buckets)} of {list(bucket_bytes)} bytes does not end with a parameter, or not all of "
            f"{len(gradients)} parameters are in a bucket; needed: buckets filled in the order in which gradients are "
            "ready, as DDP does after warm_up"
        )
    return buckets


def probe_slowdown_in_flight(
    replica: Replica, ranks: Ranks, micro_batch: MicroBatch, *, num_bytes: int, num_repeats: int
) -> dict[str, Any]:
    """Return the seconds of a backward of the plain module with and without all-reduces in flight beside it.

    `alone_seconds` and `in_flight_seconds` go by rank, then by repeat; `num_outlasted` counts the repeats (all ranks)
    whose all-reduces were still in flight when the backward ended: the others say too little. Each all-reduce is of
    `num_bytes`, and there are as many as it takes.
    """
    buffer = make_buffer(ranks, num_bytes)
    weight = 1 / max(micro_batch.num_targets, 1)
    alone, beside, num_outlasted = [], [], 0

    def time_backward() -> float:
        loss_sum = replica.forward(replica.module, micro_batch, weight=weight)
        return measure_seconds(lambda: replica.add_backward(loss_sum, weight=weight), ranks)

    for _ in range(num_repeats):
        ranks.highest(0)
        alone.append(time_backward())
        one = measure_seconds(lambda: dist.all_reduce(buffer, group=ranks.gradient_group), ranks)
        num_all_reduces = ranks.highest(int(_LONGER * alone[-1] / one) + 1)
        loss_sum = replica.forward(replica.module, micro_batch, weight=weight)
        ranks.synchronize()
        ranks.highest(0)
        flying = [dist.all_reduce(buffer, group=ranks.gradient_group, async_op=True) for _ in range(num_all_reduces)]
        started = time.perf_counter()
        replica.add_backward(loss_sum, weight=weight)
        _wait_for_computation(ranks)
        beside.append(time.perf_counter() - started)
        num_outlasted += not flying[-1].is_completed()
        for work in flying:
            work.wait()
        ranks.synchronize()
    replica.forget_gradient()
    return {
        "world_size": ranks.world_size,
        "num_bytes": num_bytes,
        "alone_seconds": ranks.gather(np.array(alone)).tolist(),
        "in_flight_seconds": ranks.gather(np.array(beside)).tolist(),
        "num_outlasted": int(ranks.gather(np.array([num_outlasted])).sum()),
    }


def _wait_for_computation(ranks: Ranks) -> None:
    """Wait for what was computed, not for what is in flight on a stream of its own."""
    if ranks.device.type == "cuda":
        torch.cuda.current_stream(ranks.device).synchronize()


def _time_forward_backward(replica: Replica, ranks: Ranks, micro_batch: MicroBatch, *, weight: float) -> list[float]:
    losses: list[Tensor] = []
    forward = measure_seconds(lambda: losses.append(replica.forward(replica.module, micro_batch, weight=weight)), ranks)
    return [forward, measure_seconds(lambda: replica.add_backward(losses.pop(), weight=weight), ranks)]


def _run_plain_step(replica: Replica, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
    for micro_batch in micro_batches:
        replica.add(replica.module, micro_batch, weight=weight)
    replica.step(0.0)


def _time_gradients(
    replica: Replica,
    ranks: Ranks,
    micro_batch: MicroBatch,
    *,
    weight: float,
    num_repeats: int,
    on_start: Callable[[], None],
) -> list[dict[str, Any]]:
    """Return when each parameter's gradient is ready: median over repeats."""
    named = {name: part for name, part in replica.module.named_parameters() if part.requires_grad}
    runs: list[dict[str, float]] = []
    for _ in range(num_repeats):
        on_start()
        runs.append(_measure_ready_shares(replica, ranks, micro_batch, named, weight=weight))
    replica.forget_gradient()
    # The order is that of the graph, the same in every backward.
    order = list(runs[0])
    shares = np.median([[run[name] for name in order] for run in runs], axis=0)
    return [
        {"name": name, "num_bytes": named[name].numel() * named[name].element_size(), "ready": share}
        for name, share in zip(order, np.maximum.accumulate(shares).tolist(), strict=True)
    ]


def _measure_ready_shares(
    replica: Replica, ranks: Ranks, micro_batch: MicroBatch, named: Mapping[str, Tensor], *, weight: float
) -> dict[str, float]:
    """Return, in the order of one backward, the share of it after which each parameter's gradient was ready."""
    marks: dict[str, Any] = {}

    def note(name: str, _: Tensor) -> None:
        marks[name] = _mark_time(ranks)

    handles = [part.register_post_accumulate_grad_hook(partial(note, name)) for name, part in named.items()]
    loss_sum = replica.forward(replica.module, micro_batch, weight=weight)
    ranks.synchronize()
    started = _mark_time(ranks)
    replica.add_backward(loss_sum, weight=weight)
    ended = _mark_time(ranks)
    ranks.synchronize()
    for handle in handles:
        handle.remove()
    whole = _compute_elapsed(started, ended)
    return {name: min(_compute_elapsed(started, mark) / whole, 1.0) for name, mark in marks.items()}


def _mark_time(ranks: Ranks) -> Any:
    """Return the time now: the host's, or on CUDA an event on the stream, for which nothing waits."""
    if ranks.device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    return time.perf_counter()


def _compute_elapsed(earlier: Any, later: Any) -> float:
    return earlier.elapsed_time(later) if isinstance(earlier, torch.cuda.Event) else later - earlier
