"""Short timed blocks of real optimizer steps, on command: what a rank does while the stage `measure` runs.

A rank connects to the stage's Unix socket and waits there, idle, until it is told to run a block. The learning rate is
0, so that the weights stay those of the base model and every block does the same work; every kernel still runs.
"""

import dataclasses
import importlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any

import torch
import torch.distributed as dist

from training.config import TrainingConfig
from training.data import MicroBatch
from training.distributed import Ranks
from training.probe import probe_compute, probe_slowdown_in_flight
from training.sweep import all_reduce_sweep
from training.variants import Made, Variant, emulated_link, emulated_of, loaded, make, micro_batches_of

_log = logging.getLogger(__name__)

_TIMER_STEPS = 5
_TIMERS = ("forward_compute", "backward_compute", "backward_comm", "backward_compute_comm_overlap")


@dataclass(frozen=True, kw_only=True)
class Block:
    """What is timed."""

    variant: Variant
    """Which step."""
    steps: Sequence[int]
    """Steps of the segment, from 1, in this order."""
    data: str
    """loader: as in training; host: made before the clock starts; device: and copied to the device."""
    part: str = "step"
    """step: all of it; update: clipping and optimizer only, without forward and backward."""
    is_alone: bool = False
    """Whether the other ranks stand still; they are then not waited for."""


class _Marks:
    """The device's time after every step, read when it is over: on CUDA nothing waits in between."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._marks: list[Any] = []

    def add(self) -> None:
        if self._ranks.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the seconds between one mark and the next; the device must have done all."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._ranks.device.type == "cuda":
            return [earlier.elapsed_time(later) / 1000 for earlier, later in pairs]
        return [later - earlier for earlier, later in pairs]


class BlockRunner:
    """Runs blocks, and keeps every variant that it has built."""

    def __init__(self, config: TrainingConfig, ranks: Ranks) -> None:
        self._config = config
        self._ranks = ranks
        self._made: dict[str, Made] = {}
        self._computing: dict[str, float] = {}
        """Variant -> seconds of its step without the wait for data, in its last block."""

    def run(self, block: Block) -> dict[str, Any]:
        """Run a block; return this rank's seconds and counts."""
        made = self._get(block.variant)
        if block.part == "update":
            return self._timed(made, block, self._updates(made, block))
        found = self._timed(made, block, self._steps(made, block))
        self._computing[_key(block.variant)] = (found["seconds"] - found["data_wait_seconds"]) / len(block.steps)
        return found

    def forget(self) -> None:
        """Drop every variant, and its memory on the device."""
        self._made.clear()
        if self._ranks.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._ranks.device)

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Return what is known of a variant beside its seconds: full steps in the segment, buckets, memory."""
        made = self._get(variant)
        emulated = emulated_of(made)
        scale = 1.0 if emulated is None else emulated.device.bytes_per_real_byte
        return {
            "num_steps": max(len(made.source) // made.config.global_batch_size, 1),
            "gradient_bucket_bytes": made.strategy.gradient_bucket_bytes,
            "bytes_per_real_byte": scale,
            "gradient_bucket_mib": [size * scale / 2**20 for size in made.strategy.gradient_bucket_bytes],
            "peak_memory_gib": _peak_memory_gib(self._ranks),
            "warm_up_seconds": made.warm_up_seconds,
            "can": _levers(made),
        }

    def ddp_timers(self, variant: Variant) -> dict[str, float]:
        """Return the seconds that DDP times itself, mean of a few steps outside the blocks; {} if it times none.

        DDP's own averages go back to its first step, which is no step like the others.
        """
        wrapped = getattr(self._get(variant).strategy, "_wrapped", None)
        if wrapped is None:
            return {}
        wrapped._set_ddp_runtime_logging_sample_rate(1)
        found = []
        for _ in range(_TIMER_STEPS):
            self.run(Block(variant=variant, steps=[1], data="device"))
            found.append(wrapped._get_ddp_logging_data())
        wrapped._set_ddp_runtime_logging_sample_rate(2**30)
        if not all(facts.get("backward_comm_time") for facts in found):
            return {}
        return {name: sum(facts.get(f"{name}_time", 0) for facts in found) / len(found) / 1e9 for name in _TIMERS}

    def probe(self, variant: Variant, *, num_repeats: int) -> dict[str, Any]:
        """Return the parts of the segment's first step, each timed alone (training/probe.py)."""
        made = self._get(variant)
        parts = [part.to(self._ranks.device) for part in micro_batches_of(made, self._ranks, 1)]
        emulated = emulated_of(made)
        options = {} if emulated is None else {"on_start": emulated.start_now}
        return probe_compute(made.strategy, self._ranks, parts, num_repeats=num_repeats, **options)

    def sweep(self, variant: Variant, *, num_repeats: int, seconds_budget: float) -> dict[str, Any]:
        """Return the all-reduce of the ranks' link by size (training/sweep.py)."""
        link = emulated_link(variant, self._config, world_size=self._ranks.world_size)
        return all_reduce_sweep(
            self._ranks, num_repeats=num_repeats, seconds_budget=seconds_budget, seconds_of_link=link
        )

    def in_flight(self, variant: Variant, *, num_bytes: int, num_repeats: int) -> dict[str, Any]:
        """Return a backward with and without all-reduces beside it (training/probe.py).

        Without repeats for an emulated device, whose link is no work for anybody.
        """
        made = self._get(variant)
        if emulated_of(made) is not None:
            return {"alone_seconds": [], "in_flight_seconds": []}
        longest = micro_batches_of(made, self._ranks, 1)[-1].to(self._ranks.device)
        return probe_slowdown_in_flight(
            made.strategy, self._ranks, longest, num_bytes=num_bytes, num_repeats=num_repeats
        )

    def _timed(self, made: Made, block: Block, run: Iterator[tuple[list[MicroBatch], int, float]]) -> dict[str, Any]:
        """Run the lead-in, then the block's steps under the clock: caches and loader are as in mid-training."""
        ranks = self._ranks
        next(run)
        marks, counts, waited = _Marks(ranks), [0, 0, 0], 0.0
        ranks.synchronize()
        if not block.is_alone and ranks.world_size > 1:
            dist.barrier()
        emulated = emulated_of(made)
        if emulated is not None:
            emulated.start_now()
        started = time.perf_counter()
        marks.add()
        for micro_batches, _, data_wait_seconds in run:
            marks.add()
            waited += data_wait_seconds
            counts[0] += sum(part.num_tokens for part in micro_batches)
            counts[1] += sum(part.num_positions for part in micro_batches)
            counts[2] += sum(part.num_samples for part in micro_batches)
        ranks.synchronize()
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "step_seconds": marks.seconds(),
            "data_wait_seconds": waited,
            "num_tokens": counts[0],
            "num_positions": counts[1],
            "num_samples": counts[2],
        }

    def _steps(self, made: Made, block: Block) -> Iterator[tuple[list[MicroBatch], int, float]]:
        """Yield the micro-batches of every step after it has run; first those of the lead-in, one of which has."""
        ahead: list[Future[list[MicroBatch]]] = []
        steps = loaded(made, self._ranks, [block.steps[0], *block.steps], block.data, on_ahead=ahead.append)
        micro_batches, step, waited = next(steps)
        began = time.perf_counter()
        made.strategy.warm_up(micro_batches[-1])
        # In a training the loader has a whole step's time for the next one, not that of a micro-batch.
        left = self._computing.get(_key(block.variant), 0.0) - (time.perf_counter() - began)
        if ahead and left > 0:
            wait(ahead, timeout=left)
        yield micro_batches, step, waited
        for micro_batches, step, waited in steps:
            num_targets = made.plan.step(step).num_targets
            made.strategy.train_step(micro_batches, num_targets=num_targets, learning_rate=0.0)
            yield micro_batches, step, waited

    def _updates(self, made: Made, block: Block) -> Iterator[tuple[list[MicroBatch], int, float]]:
        """Yield after every update with a gradient of zeros, which was made while the clock stood still for it."""
        replica = made.strategy.replica
        gradient = [torch.zeros_like(parameter) for parameter in replica.parameters]
        for step in [block.steps[0], *block.steps]:
            replica.put_gradient(gradient)
            replica.step(0.0)
            yield [], step, 0.0

    def _get(self, variant: Variant) -> Made:
        key = _key(variant)
        if key not in self._made:
            self._made[key] = make(variant, self._config, self._ranks)
        return self._made[key]


def _key(variant: Variant) -> str:
    return json.dumps(dataclasses.asdict(variant), sort_keys=True, default=str)


def _levers(made: Made) -> list[str]:
    """Return which ways of training the model would take: packing, early_tied_head."""
    workload: Any = importlib.import_module(f"training.workloads.{made.config.workload}")
    model, can = made.strategy.replica.module, list[str]()
    if made.config.compile:
        # What is tried here would be compiled for.
        return can
    if hasattr(workload, "can_pack") and workload.can_pack(model, made.config):
        can.append("packing")
    if hasattr(workload, "tied_weight") and workload.tied_weight(model) is not None:
        can.append("early_tied_head")
    return can


def _peak_memory_gib(ranks: Ranks) -> float | None:
    return torch.cuda.max_memory_allocated(ranks.device) / 2**30 if ranks.device.type == "cuda" else None


def serve(config: TrainingConfig, ranks: Ranks, *, address: str) -> None:
    """Run what the stage asks for, until it hangs up."""
    plug = socket(AF_UNIX, SOCK_STREAM)
    plug.connect(address)
    line = Connection(plug.detach())
    _say(line, {"rank": ranks.rank, "backend": ranks.backend})
    runner = BlockRunner(config, ranks)
    while True:
        try:
            asked = json.loads(line.recv_bytes())
        except EOFError:
            return
        _say(line, {"rank": ranks.rank, **_answer(runner, ranks, asked)})


def _answer(runner: BlockRunner, ranks: Ranks, asked: dict[str, Any]) -> dict[str, Any]:
    command, variant = asked["command"], Variant(**asked.get("variant", {}))
    if command == "run":
        return runner.run(Block(**{**asked["block"], "variant": variant}))
    if command == "facts":
        return runner.facts(variant)
    if command == "timers":
        return runner.ddp_timers(variant)
    if command == "probe":
        return runner.probe(variant, num_repeats=asked["num_repeats"])
    if command == "in_flight":
        return runner.in_flight(variant, num_bytes=asked["num_bytes"], num_repeats=asked["num_repeats"])
    if command == "sweep":
        return runner.sweep(variant, num_repeats=asked["num_repeats"], seconds_budget=asked["seconds_budget"])
    if command == "forget":
        runner.forget()
        return {}
    raise ValueError(f"command {command!r}; allowed: run, facts, timers, probe, in_flight, sweep, forget")


def _say(line: Connection, answer: Mapping[str, Any]) -> None:
    line.send_bytes(json.dumps(answer).encode())
