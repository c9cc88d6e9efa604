"""What a step of a rank really takes of memory: of the device, of the host, and what for.

A cell's step is built by itself, before anything else is, and dropped again: what is measured is its alone.
"""

import dataclasses
import gc
import sys
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from training.config import TrainingConfig
from training.data.batches import MicroBatch, Rows
from training.data.plan import SegmentPlan, make_micro_batch, make_micro_batches
from training.probing.live_memory import ACTIVATIONS, MOMENTS, LiveMemory, find_head_width
from training.process.distributed import Ranks
from training.process.heartbeat import StepSection
from training.step.strategy import find_strategy
from training.workloads import Workload, find_workload, open_segment

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class LargestStep(NamedTuple):
    """The step of all segments whose first micro-batch is the largest."""

    source: Rows
    plan: SegmentPlan
    number: int
    first: MicroBatch
    """Its first micro-batch, on the CPU."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservedMemory:
    """What one rank took, in bytes."""

    parts: dict[str, int] | None
    """Kind (live_memory.KINDS) -> bytes of tensors when all together were most, in a real step; None for compiled
    layers, whose tensors nobody can follow."""
    allocated_bytes: int | None
    """Most of the device: by torch's allocator on a GPU, the sum of `parts` on the CPU."""
    reserved_bytes: int | None
    """Most that torch had taken from the device; None on the CPU."""
    host_bytes: int | None
    """Most memory of the process on the host, whatever for; None where the system does not tell."""
    host_before_bytes: int | None
    """The same before the model was there: the interpreter and its packages."""


def find_largest_step(workload: Workload, config: TrainingConfig) -> LargestStep:
    """Return the step with the largest micro-batch of all segments."""
    results = []
    for segment in config.segments:
        source, plan = open_segment(workload, config, segment)
        number = plan.find_largest_step()
        first = make_micro_batch(source, plan.step(number), 0, seq_len=config.seq_len, seed=(config.seed, 0))
        results.append(LargestStep(source, plan, number, first))
    return max(results, key=lambda result: result.first.num_positions)


def observe_memory(config: TrainingConfig, ranks: Ranks) -> ObservedMemory:
    """Run the largest step of the segments, of which nothing is left afterwards; to be called by all ranks.

    Raises what building the strategy and running its steps raise.
    """
    _free(ranks)
    before = _read_host_bytes("VmRSS")
    memory = None if config.compile else LiveMemory(ranks.device)
    with memory or nullcontext():
        _run_steps(config, ranks, memory)
    is_cuda = ranks.device.type == "cuda"
    parts = None if memory is None else dict(memory.peak)
    followed = None if parts is None else sum(parts.values())
    result = ObservedMemory(
        parts=parts,
        allocated_bytes=torch.cuda.max_memory_allocated(ranks.device) if is_cuda else followed,
        reserved_bytes=torch.cuda.max_memory_reserved(ranks.device) if is_cuda else None,
        host_bytes=_read_host_bytes("VmHWM"),
        host_before_bytes=before,
    )
    _free(ranks)
    return result


def _run_steps(config: TrainingConfig, ranks: Ranks, memory: LiveMemory | None) -> None:
    workload = find_workload(config.workload)
    result = find_largest_step(workload, config)
    model = workload.load_model(config.model_dir)
    if memory is not None:
        memory.head_width = find_head_width(model)
    strategy = find_strategy(config.strategy).build(model, workload, config, ranks)
    del model
    if memory is not None:
        memory.look_at(strategy)
    if ranks.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(ranks.device)
    if sys.platform == "linux":
        # 5: the most that was resident. Source: proc_pid_clear_refs(5). A container may not allow it: then reading the
        # model counts, too.
        with suppress(OSError):
            _CLEAR.write_text("5")
    strategy.warm_up(result.first.to(ranks.device))
    step = result.plan.step(result.number)
    micro_batches = [
        part.to(ranks.device)
        for part in make_micro_batches(
            result.source, step, rank=strategy.data_rank, world_size=strategy.data_world_size, seq_len=config.seq_len,
            seed=(config.seed, result.number),
        )
    ]  # fmt: skip
    run = partial(strategy.train_step, micro_batches, num_targets=step.num_targets, learning_rate=0.0)
    if memory is not None:
        enter = strategy.replica.on_section

        def begin_update(section: StepSection) -> None:
            enter(section)
            if section == StepSection.UPDATE:
                memory.kind = MOMENTS

        # The first update makes the moments; from the second on all that a step finds is there, and known.
        strategy.replica.on_section = begin_update
        run()
        strategy.replica.on_section, memory.kind = enter, ACTIVATIONS
        memory.forget_peak()
    run()
    ranks.synchronize()


def _free(ranks: Ranks) -> None:
    gc.collect()
    if ranks.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(ranks.device)


def _read_host_bytes(name: str) -> int | None:
    """Return a line of the process's own status, which counts in KiB; None where there is none."""
    if not _STATUS.exists():
        return None
    lines = (line.split() for line in _STATUS.read_text().splitlines())
    return next((int(line[1]) * 1024 for line in lines if line[0] == f"{name}:"), None)
