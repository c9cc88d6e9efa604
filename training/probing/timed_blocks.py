"""Short timed blocks of real optimizer steps, on command: what a rank does while the stage `measure` runs.

A rank connects to the stage's Unix socket and waits there, idle, until it is told to run a block. The learning rate is
0, so that the weights stay those of the base model and every block does the same work; every kernel still runs.
"""

import dataclasses
import gc
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, supported_activities

from ddp_audit.process.flight_recorder import forget_recorded
from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.probing.observed_memory import observe_memory
from training.probing.sweep import sweep_exchange
from training.probing.variants import (
    BuiltVariant,
    SharedState,
    Variant,
    build_variant,
    load_micro_batches,
)
from training.process.distributed import Ranks, collect_device_facts
from training.record.cpu_use import CpuUse
from training.record.ledger_file import digest_rows
from training.record.setting import gather_setting
from training.record.window import DeviceClock
from training.step.optimizer import get_local_rows
from training.step.strategy import StepResult
from training.step.traffic import Recorded, count_exchanges
from training.workloads import open_segment

_MOST_EVENTS = 5_000
"""Of a rank: the longest ones."""
EXCHANGE, DEVICE, HOST = "exchange", "device", "host"


_log = logging.getLogger(__name__)

Answer = dict[str, Any]
"""What a rank says to what it was asked: JSON."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """What is timed."""

    variant: Variant
    """Which step."""
    steps: Sequence[int]
    """Steps of the segment, from 1, in this order."""
    segment: int = 0
    """Which of the config's segments, from 0."""
    data: str
    """loader: as in training; host: made before the clock starts; device: and copied to the device."""
    part: str = "step"
    """step: all of it; update: clipping and optimizer only, without forward and backward."""
    is_alone: bool = False
    """Whether the other ranks stand still; they are then not waited for."""


class _Ran(NamedTuple):
    """One step of a block that has run."""

    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, int]] = ()
    """Of each micro-batch whose rows count here: rows, tokens and targets of each, and positions."""
    data_wait_seconds: float = 0.0
    result: StepResult | None = None
    """None for the lead-in, and for an update alone."""


class Updates:
    """Which updates an optimizer made, told by its own state: read before a block and after it, while no clock runs.

    Counts from its making on, parameter by parameter of those that this rank updates; moments then begin at 0."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, counted_elsewhere: Sequence[Tensor] = ()) -> None:
        self._optimizer = optimizer
        self._elsewhere = {id(part) for part in counted_elsewhere}
        """Parameters of which another rank counts the moments."""
        self._calls: Counter[Tensor] = Counter()
        self._hook = optimizer.register_step_post_hook(self._count_call)
        self._before = self._count()
        for _, moment in self._list_moments():
            moment.zero_()

    def measure(self) -> dict[str, Any]:
        """Return the fewest and the most updates that one of its parameters has had since, and their elements.

        `moment_squares` is the sum of the squares of all moments: the same, to the rounding of sums, for the same
        gradients, whatever was before. 0 for an optimizer without moments.
        """
        self._hook.remove()
        made = {part: number for part, number in self._count().items() if get_local_rows(part).numel()}
        numbers = [round(number - self._before.get(part, 0.0)) for part, number in made.items()]
        norms = [
            float(torch.linalg.vector_norm(moment, dtype=torch.float64))
            for part, moment in self._list_moments()
            if id(part) not in self._elsewhere
        ]
        return {
            "updates": [min(numbers, default=0), max(numbers, default=0)],
            "num_updated": sum(get_local_rows(part).numel() for part in made),
            "moment_squares": sum(norm**2 for norm in norms),
        }

    def _count_call(self, *_: Any) -> None:
        self._calls.update(
            part for group in self._optimizer.param_groups for part in group["params"] if part.grad is not None
        )

    def _count(self) -> dict[Tensor, float]:
        """Return parameter -> updates so far: by the state's count, or by those that were seen here."""
        state = self._optimizer.state
        # An engine that shards may lend its parameters to the optimizer for the update alone.
        parts = list(state or self._calls) or [
            param for group in self._optimizer.param_groups for param in group["params"]
        ]
        return {part: float(state.get(part, {}).get("step", self._calls[part])) for part in parts}

    def _list_moments(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield parameters, and this rank's rows of what the optimizer keeps of their gradients: what is as large."""
        for part, kept in self._optimizer.state.items():
            for name, item in kept.items():
                if name != "step" and isinstance(item, Tensor) and item.shape == part.shape:
                    yield part, get_local_rows(item)


class BlockRunner:
    """Runs blocks, and keeps every variant that it has built."""

    def __init__(self, config: TrainingConfig, ranks: Ranks) -> None:
        self.config = config
        self._ranks = ranks
        self._made: dict[tuple[str, int], BuiltVariant] = {}
        """(Variant, segment) -> it on the rows of this segment; the model is the same."""
        self._shared = SharedState()
        self._threads: int | None = None
        """As they were set last."""
        self._computing: dict[str, float] = {}
        """Variant -> seconds of its step without the wait for data, in its last block."""

    def run(self, block: Block) -> Answer:
        """Run a block; return this rank's seconds, and what it did in them."""
        made = self._get(block.variant, block.segment)
        if block.part == "update":
            return self._time_block(made, block, self._run_updates(made, block))
        result = self._time_block(made, block, self._run_steps(made, block))
        self._computing[_make_key(block.variant)] = (result["seconds"] - result["data_wait_seconds"]) / len(block.steps)
        return result

    def forget(self) -> None:
        """Drop every variant, and its memory on the device."""
        self._made.clear()
        self._shared.clear()
        # A model is held by circles of references: until they are found it stays on the device.
        gc.collect()
        if self._ranks.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._ranks.device)

    def facts(self, variant: Variant) -> Answer:
        """Return what is known of a variant beside its seconds: full steps in the segment, buckets, memory, setting.

        To be asked of all ranks.
        """
        made, device = self._get(variant), self._ranks.device
        workload, config, strategy = made.workload, made.config, made.strategy
        sizes = [len(workload.open_slice(segment.slice_dir)) for segment in config.segments]
        memory: dict[str, float | None] = {"peak_memory_gib": None, "peak_reserved_gib": None}
        if device.type == "cuda":
            memory = {
                "peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30,
                "peak_reserved_gib": torch.cuda.max_memory_reserved(device) / 2**30,
            }
        can = []
        # Of compiled layers what is tried here would be compiled for.
        if not config.compile:
            # A part of a model cannot be tried.
            model = strategy.module if strategy.has_replica else workload.load_model(config.model_dir)
            can = ["packing"] if workload.can_pack(model, config) else []
        return {
            "num_steps": max(len(made.source) // config.global_batch_size, 1),
            "num_steps_of_segments": [max(size // config.global_batch_size, 1) for size in sizes],
            "exchange": strategy.describe(),
            **memory,
            "warm_up_seconds": made.warm_up_seconds,
            "can": can,
            "setting": gather_setting(config, self._ranks, strategy.module),
        }

    def collect_timers(self, variant: Variant) -> dict[str, float]:
        """Return the seconds that the strategy's engine times itself, outside the blocks; {} if it times none."""
        return self._get(variant).strategy.own_timers(
            lambda: self.run(Block(variant=variant, steps=[1], data="device"))
        )

    def record_timeline(self, variant: Variant) -> Answer:
        """Return what this rank does in the segment's first step."""
        run = self._run_steps(self._get(variant), Block(variant=variant, steps=[1], data="loader"))
        next(run)
        self._ranks.synchronize()
        if self._ranks.world_size > 1:
            dist.barrier()
        return record_timeline(lambda: next(run, None), self._ranks)

    def sweep(self, variant: Variant) -> Answer:
        """Return an exchange over the ranks' link by size (training/probing/sweep.py)."""
        # No variant needs to be built for it.
        return sweep_exchange(self._ranks)

    def _time_block(self, made: BuiltVariant, block: Block, run: Iterator[_Ran]) -> Answer:
        """Run the lead-in, then the block's steps under the clock: caches and loader are as in mid-training."""
        ranks = self._ranks
        next(run)
        updates = Updates(made.strategy.optimizer, counted_elsewhere=made.strategy.updated_elsewhere)
        clock, rans = DeviceClock(ranks.device), list[_Ran]()
        ranks.synchronize()
        forget_recorded(ranks.backend)
        if not block.is_alone and ranks.world_size > 1:
            dist.barrier()
        num_before = count_exchanges(ranks)
        cpu_use = CpuUse()
        started = time.perf_counter()
        marks = [clock.mark()]
        for ran in run:
            marks.append(clock.mark())
            rans.append(ran)
        ranks.synchronize()
        seconds = time.perf_counter() - started
        used = cpu_use.measure()
        num_after = count_exchanges(ranks)
        recorded = Recorded(ranks).between(num_before, num_after)
        return {
            "seconds": seconds,
            "step_seconds": [clock.measure(*pair) for pair in itertools.pairwise(marks)],
            **_sum_up(rans),
            **updates.measure(),
            "num_exchanges": sum(num_after) - sum(num_before),
            "exchange_bytes": None if recorded is None else recorded.num_bytes,
            "cpu_use": used,
        }

    def _run_steps(self, made: BuiltVariant, block: Block) -> Iterator[_Ran]:
        """Yield every step after it has run; first the lead-in, one micro-batch of a step."""
        ahead: list[Future[list[MicroBatch]]] = []
        steps = load_micro_batches(made, self._ranks, [block.steps[0], *block.steps], block.data, on_ahead=ahead.append)
        micro_batches, step, waited = next(steps)
        began = time.perf_counter()
        made.strategy.warm_up(micro_batches[-1])
        # In a training the loader has a whole step's time for the next one, not that of a micro-batch.
        left = self._computing.get(_make_key(block.variant), 0.0) - (time.perf_counter() - began)
        if ahead and left > 0:
            wait(ahead, timeout=left)
        yield _Ran(data_wait_seconds=waited)
        for micro_batches, step, waited in steps:
            num_targets = made.plan.step(step).num_targets
            result = made.strategy.train_step(micro_batches, num_targets=num_targets, learning_rate=0.0)
            parts = [
                (part.row_ids, part.sample_num_tokens, part.sample_num_targets, part.num_positions)
                for part in (micro_batches if made.strategy.counts_rows else ())
            ]
            yield _Ran(parts, waited, result)

    def _run_updates(self, made: BuiltVariant, block: Block) -> Iterator[_Ran]:
        """Yield after every update with a gradient of zeros, which was made while the clock stood still for it."""
        if not made.strategy.has_replica:
            raise ValueError(f"{made.config.strategy}: no rank holds the whole model; allowed: an independent copy")
        replica = made.strategy.replica
        gradient = [torch.zeros_like(parameter) for parameter in replica.parameters]
        for _ in [block.steps[0], *block.steps]:
            replica.put_gradient(gradient)
            replica.optimizer_step(0.0)
            yield _Ran()

    def _get(self, variant: Variant, segment: int = 0) -> BuiltVariant:
        key = _make_key(variant)
        if (key, 0) not in self._made:
            self._made[key, 0] = build_variant(variant, self.config, self._ranks, self._shared)
        if (key, segment) not in self._made:
            # The very same model, on the rows of another segment.
            made = self._made[key, 0]
            source, plan = open_segment(made.workload, made.config, made.config.segments[segment])
            self._made[key, segment] = dataclasses.replace(made, source=source, plan=plan)
        # Once: what a step makes of it is to be seen in what the ranks then say that they ran with.
        threads = self._made[key, segment].config.threads_per_rank
        if threads != self._threads:
            torch.set_num_threads(threads)
            self._threads = threads
        return self._made[key, segment]


def _sum_up(rans: Sequence[_Ran]) -> Answer:
    """Return what the steps of a block did, and a digest of which rows each had."""
    parts = [part for ran in rans for part in ran.parts]
    results = [ran.result for ran in rans if ran.result is not None]
    return {
        "data_wait_seconds": sum(ran.data_wait_seconds for ran in rans),
        "num_samples": sum(len(rows) for rows, *_ in parts),
        "num_tokens": sum(int(tokens.sum()) for _, tokens, *_ in parts),
        "num_targets": sum(int(targets.sum()) for *_, targets, _ in parts),
        "num_positions": sum(positions for *_, positions in parts),
        "num_micro_batches": sum(len(rows) > 0 for rows, *_ in parts),
        "loss_sum": sum(float(result.loss_sum) for result in results),
        "grad_norm_sum": sum(float(result.grad_norm) for result in results),
        "rows_digest": digest_rows([[rows for rows, *_ in ran.parts] for ran in rans]),
    }


def _make_key(variant: Variant) -> str:
    return json.dumps(dataclasses.asdict(variant), sort_keys=True, default=str)


def serve(config: TrainingConfig, ranks: Ranks, *, address: str) -> None:
    """Run what the stage asks for, until it hangs up."""
    stream = socket(AF_UNIX, SOCK_STREAM)
    stream.connect(address)
    line = Connection(stream.detach())
    _send(line, {"rank": ranks.rank, "backend": ranks.backend, "device": collect_device_facts(ranks.device)})
    runner = BlockRunner(config, ranks)
    while True:
        try:
            asked = json.loads(line.recv_bytes())
        except EOFError:
            return
        _send(line, {"rank": ranks.rank, **_answer(runner, ranks, asked)})


def _answer(runner: BlockRunner, ranks: Ranks, asked: dict[str, Any]) -> Answer:
    command, variant = asked["command"], Variant(**asked.get("variant", {}))
    if command == "run":
        return runner.run(Block(**{**asked["block"], "variant": variant}))
    if command == "facts":
        return runner.facts(variant)
    if command == "memory":
        # What a step of the cell takes: to be asked first.
        return dataclasses.asdict(observe_memory(runner.config, ranks))
    if command == "timers":
        return runner.collect_timers(variant)
    if command == "timeline":
        return runner.record_timeline(variant)
    if command == "sweep":
        return runner.sweep(variant)
    if command == "forget":
        runner.forget()
        return {}
    raise ValueError(f"command {command!r}; allowed: run, facts, memory, timers, timeline, sweep, forget")


def _send(line: Connection, answer: Mapping[str, Any]) -> None:
    line.send_bytes(json.dumps(answer).encode())


def record_timeline(step: Callable[[], object], ranks: Ranks) -> Answer:
    """Run the step and return what this rank did: events of (name, where, start, microseconds), in the order of time.

    `where` is exchange, device, or host and the number of its thread; starts are in microseconds after `started_at_ns`,
    which is the system's clock, so that the ranks of a machine stand on one axis. Raises RuntimeError as the profiler
    does.
    """
    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} if ranks.device.type == "cuda" else {ProfilerActivity.CPU}
    with profile(activities=list(wanted & set(supported_activities()))) as result:
        step()
        ranks.synchronize()
    events = [
        [event.name[:120], _find_place(event), event.time_range.start, event.time_range.elapsed_us()]
        for event in result.events() or []
    ]
    longest = sorted(events, key=lambda event: -event[3])[:_MOST_EVENTS]
    results = result.profiler.kineto_results if result.profiler else None
    return {
        "started_at_ns": 0 if results is None else results.trace_start_ns(),
        "events": sorted(longest, key=lambda event: event[2]),
        "num_left_out": len(events) - len(longest),
    }


def _find_place(event: Any) -> str:
    if event.is_async or event.name.startswith(("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")):
        return EXCHANGE
    return DEVICE if event.device_type == torch.autograd.DeviceType.CUDA else f"{HOST} {event.thread}"
