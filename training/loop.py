"""THE training loop: one cell, segment by segment, step by step. It knows no strategy and no workload by name."""

import importlib
import logging
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from training.checkpoint import CheckpointStore
from training.config import TrainingConfig
from training.data import MicroBatch, open_slice
from training.distributed import Ranks
from training.events import EventStream
from training.failure import EXIT_INTERRUPTED, RanksDisagreeError, StoppedError
from training.fault import Fault, planned_fault
from training.gradient import GradientKeeper
from training.plan import micro_batches_for, plan_segment
from training.prefetch import prefetched
from training.record import Counters, SegmentRecord, now
from training.schedule import learning_rate_at
from training.stopping import StopRequest
from training.strategies import Strategy
from training.window import Window

_log = logging.getLogger(__name__)

# Between log points the ranks ask each other about this often whether one was told to stop.
_SECONDS_BETWEEN_STOP_CHECKS = 1.0


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of the process: everything that is not the work itself."""

    config: TrainingConfig
    """What to train."""
    ranks: Ranks
    """Who trains it."""
    stop: StopRequest
    """Whether this rank was asked to stop."""
    events: EventStream
    """What is said to the parent."""
    store: CheckpointStore
    """Where finished and partial work is."""
    keeps_gradient: bool
    """Whether to write the first step's gradient to a file (training/gradient.py)."""
    fault: Fault | None
    """What is to go wrong, in tests."""


def train(
    config: TrainingConfig, ranks: Ranks, *, stop: StopRequest, events: EventStream, keeps_gradient: bool = False
) -> None:
    """Train every segment of the run that is not finished, in order, each from where its predecessor ended.

    Raises StoppedError, DivergedError, BadCheckpointError, UnwritableError or RanksDisagreeError, on all ranks alike.
    """
    started = time.perf_counter()
    store = CheckpointStore(
        config.work_dir, model_name=config.model_name, world_size=ranks.world_size, exact=config.exact, events=events
    )
    launch = Launch(
        config=config, ranks=ranks, stop=stop, events=events, store=store, keeps_gradient=keeps_gradient,
        fault=planned_fault(ranks.rank),
    )  # fmt: skip
    if ranks.is_first:
        store.clear_unfinished()
    sizes = [len(open_slice(segment.slice_dir)) for segment in config.segments]
    num_steps = [-(-size // config.global_batch_size) for size in sizes]
    _say_launched(launch, sum(num_steps))

    strategy: Strategy | None = None
    stands_after = -1
    """Index of the segment at whose end the strategy's state is; -1: the base model."""
    facts: dict[str, Any] = {}
    """segment.json of the predecessor."""
    for index, segment in enumerate(config.segments):
        start_checksum = facts["parameter_checksums"][0] if facts else None
        finished = ranks.first_says(partial(store.finished, segment, start_checksum=start_checksum))
        if finished is not None:
            events.send("segment_reused", **finished)
            _log.info("%s epoch %d: reused, its receipt verifies", segment.range, segment.epoch)
        else:
            _stop_if_asked(launch, before_step=sum(num_steps[:index]) + 1)
            strategy = strategy or _build_strategy(launch)
            if stands_after != index - 1:
                store.load_finished(config.segments[index - 1], strategy.replica, facts)
            record = SegmentRecord(
                segment=segment,
                first_step=sum(num_steps[:index]) + 1,
                num_steps=num_steps[index],
                # Of the weights it does begin with, for a gate to hold against those it should begin with.
                counters=Counters(started_at=now(), start_checksum=strategy.replica.parameter_checksum()),
            )
            _resume(launch, strategy, record)
            finished = train_segment(launch, strategy, record)
            stands_after = index
        facts = finished
    events.send("launch_finished", seconds=time.perf_counter() - started)


def train_segment(launch: Launch, strategy: Strategy, record: SegmentRecord) -> dict[str, Any]:
    """Train one segment from wherever its record stands to its end; return its segment.json."""
    config, ranks, segment = launch.config, launch.ranks, record.segment
    source = open_slice(segment.slice_dir)
    plan = plan_segment(
        source.lengths(config.seq_len),
        seed=config.seed,
        epoch=segment.epoch,
        rows=segment.range,
        global_batch_size=config.global_batch_size,
        micro_batch_size=config.micro_batch_size,
    )

    def make(segment_step: int) -> list[MicroBatch]:
        run_step = record.first_step + segment_step - 1
        step = plan.step(segment_step)
        return list(
            micro_batches_for(
                source, step, rank=ranks.rank, world_size=ranks.world_size, seq_len=config.seq_len,
                seed=(config.seed, run_step),
            )
        )  # fmt: skip

    steps = range(record.counters.segment_step + 1, plan.num_steps + 1)
    if steps:
        strategy.warm_up(make(steps.start)[-1].to(ranks.device))
    steps_between_stop_checks = 1
    record.start_span()
    window = Window(ranks)
    for segment_step, micro_batches, data_wait_seconds in prefetched(make, steps, ranks.device):
        step = record.first_step + segment_step - 1
        num_tokens = plan.step(segment_step).num_tokens
        learning_rate = learning_rate_at(
            segment_step, plan.num_steps,
            peak=config.learning_rate, schedule=config.schedule, warmup_steps=config.warmup_steps,
        )  # fmt: skip

        with window.computing():
            result = strategy.train_step(micro_batches, num_tokens=num_tokens, learning_rate=learning_rate)

        if launch.fault is not None:
            launch.fault.strike(step)
        record.consume(step, ranks.rank, micro_batches, result)
        window.add(
            step, result, micro_batches,
            num_tokens=num_tokens, learning_rate=learning_rate, data_wait_seconds=data_wait_seconds,
        )  # fmt: skip
        is_last = segment_step == plan.num_steps
        is_checkpoint = config.checkpoint_every_steps > 0 and segment_step % config.checkpoint_every_steps == 0
        is_log_point = is_last or is_checkpoint or segment_step % config.log_every_steps == 0
        if not is_log_point and segment_step % steps_between_stop_checks == 0:
            with window.computing():
                is_log_point = ranks.highest(launch.stop.exit_code) > 0
        if not is_log_point:
            continue

        # ---------------------------------------------------- log point: the clock stands still from here on
        facts = window.close(forgives_overflow=strategy.replica.forgives_overflow)
        for line in record.add(facts):
            launch.events.send(**line)
        steps_between_stop_checks = max(1, int(_SECONDS_BETWEEN_STOP_CHECKS / facts[-1].seconds))
        stop_code = ranks.highest(launch.stop.exit_code)
        record.counters.log_seconds += time.perf_counter() - window.closed_at
        if not is_last and (is_checkpoint or stop_code):
            _save_partial(launch, strategy, record)
        if not is_last and stop_code:
            raise _stopped(stop_code, before_step=step + 1)
        window.open()
        # ---------------------------------------------------- the clock runs again

    return _finish(launch, strategy, record)


def _build_strategy(launch: Launch) -> Strategy:
    """Return the strategy around the base model."""
    config = launch.config
    workload: Any = importlib.import_module(f"training.workloads.{config.workload}")
    strategies: Any = importlib.import_module(f"training.strategies.{config.strategy}")
    model = workload.load_model(config.model_dir)
    strategy: Strategy = strategies.build(model, workload, config, launch.ranks)
    if launch.keeps_gradient:
        strategy.replica.on_gradient = GradientKeeper(config.work_dir, launch.ranks)
    return strategy


def _resume(launch: Launch, strategy: Strategy, record: SegmentRecord) -> None:
    """Restore the segment's newest partial checkpoint, if there is one."""
    store, segment, ranks = launch.store, record.segment, launch.ranks
    checksum = record.counters.start_checksum

    def newest() -> str | None:
        folder = store.newest_partial(segment, start_checksum=checksum)
        return str(folder) if folder else None

    folder = ranks.first_says(newest)
    if folder is not None:
        store.load_partial(Path(folder), strategy.replica, record, is_first_rank=ranks.is_first)
    done = record.counters.segment_step
    launch.stop.listen()
    launch.events.send(
        "segment_started",
        range=segment.range,
        epoch=segment.epoch,
        segment_steps=record.num_steps,
        first_step=record.first_step,
        resumed_at_step=done,
    )
    origin = f"goes on after step {done}" if done else "begins"
    _log.info("%s epoch %d: %s, %d steps", segment.range, segment.epoch, origin, record.num_steps)
    if ranks.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(ranks.device)


def _save_partial(launch: Launch, strategy: Strategy, record: SegmentRecord) -> None:
    ranks, started = launch.ranks, time.perf_counter()
    record.note_span()
    _note_peak_memory(ranks, record)
    ledger = record.whole_ledger(ranks)
    ranks.first_says(lambda: str(launch.store.save_partial(strategy.replica, record, ledger)))
    seconds = time.perf_counter() - started
    record.counters.checkpoint_seconds += seconds
    launch.events.send(
        "checkpoint_saved",
        range=record.segment.range,
        epoch=record.segment.epoch,
        step=record.first_step + record.counters.segment_step - 1,
        seconds=seconds,
    )


def _finish(launch: Launch, strategy: Strategy, record: SegmentRecord) -> dict[str, Any]:
    """Prove that all ranks hold the same parameters, then save the segment; return its segment.json."""
    ranks, started = launch.ranks, time.perf_counter()
    _note_peak_memory(ranks, record)
    checksums = ranks.gather_text(strategy.replica.parameter_checksum())
    if len(set(checksums)) > 1:
        raise RanksDisagreeError(
            f"{record.segment.range} epoch {record.segment.epoch}: the ranks hold different parameters (sha256 "
            f"{', '.join(checksums)}); nothing was saved"
        )
    ledger = record.whole_ledger(ranks)
    earlier_seconds = record.counters.checkpoint_seconds

    def summarise() -> dict[str, Any]:
        record.counters.checkpoint_seconds = earlier_seconds + time.perf_counter() - started
        record.note_span()
        return record.summary(
            launch.config.cell, ranks,
            gradient_bucket_bytes=strategy.gradient_bucket_bytes, parameter_checksums=checksums,
        )  # fmt: skip

    facts: dict[str, Any] = ranks.first_says(
        lambda: launch.store.save_finished(strategy.replica, record, ledger, summarise)
    )
    launch.events.send("segment_finished", **facts)
    _log.info(
        "%s epoch %d: finished, loss %.4f, %.0f tokens/s",
        record.segment.range, record.segment.epoch, facts["loss"], facts["tokens_per_second"],
    )  # fmt: skip
    return facts


def _note_peak_memory(ranks: Ranks, record: SegmentRecord) -> None:
    if ranks.device.type == "cuda":
        peak = ranks.highest(torch.cuda.max_memory_allocated(ranks.device)) / 2**30
        record.counters.peak_memory_gib = max(peak, record.counters.peak_memory_gib or 0.0)


def _stop_if_asked(launch: Launch, *, before_step: int) -> None:
    code = launch.ranks.highest(launch.stop.exit_code)
    if code:
        raise _stopped(code, before_step=before_step)


def _stopped(exit_code: int, *, before_step: int) -> StoppedError:
    asked = "SIGINT" if exit_code == EXIT_INTERRUPTED else "SIGTERM"
    return StoppedError(f"stopped by {asked} before step {before_step}; all before it is saved", exit_code=exit_code)


def _say_launched(launch: Launch, num_steps: int) -> None:
    config, ranks = launch.config, launch.ranks
    launch.events.send(
        "launch_started",
        cell=config.cell,
        started_at=now(),
        pid=os.getpid(),
        world_size=ranks.world_size,
        device=config.device,
        backend=ranks.backend,
        num_segments=len(config.segments),
        num_steps=num_steps,
    )
