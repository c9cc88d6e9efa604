"""THE training loop: one cell, segment by segment, step by step. It knows no strategy and no workload by name."""

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from training.config import TrainingConfig
from training.data.batches import MicroBatch, Rows, prefetch_micro_batches
from training.data.plan import SegmentPlan, make_micro_batch, make_micro_batches
from training.heldout import Heldout
from training.launch import TrainingLaunch, build_strategy, make_stopped_error
from training.model.layers import explain_failed_compilation
from training.process.distributed import Ranks, collect_device_facts
from training.process.events import EventStream, StopRequest
from training.process.failure import DivergedError, GradientNotFiniteError, RanksDisagreeError
from training.process.files import digest_code
from training.process.heartbeat import Heartbeat, StepSection
from training.record.ledger_file import count_targets
from training.record.segment import SegmentRecord, format_utc_time
from training.record.segment_facts import Counters, SegmentFacts
from training.record.setting import gather_setting
from training.record.window import DivergenceRule, StepFacts, Window
from training.state.checkpoint import CheckpointStore
from training.state.receipt import DROPPED, drop_files
from training.state.update_keeper import UpdateKeeper
from training.step.schedule import compute_rate_in_segment
from training.step.snapshot import Digests
from training.step.strategy import Strategy
from training.workloads import open_segment

_log = logging.getLogger(__name__)

# Between log points the ranks ask each other about this often whether one was told to stop.
_SECONDS_BETWEEN_STOP_CHECKS = 1.0


def train(
    config: TrainingConfig,
    ranks: Ranks,
    *,
    stop: StopRequest,
    events: EventStream,
    heartbeat: Heartbeat | None = None,
) -> None:
    """Train every segment of the run that is not finished, in order, each from where its predecessor ended.

    Raises StoppedError, DivergedError, BadCheckpointError, UnwritableError or RanksDisagreeError, on all ranks alike.
    """
    started = time.perf_counter()
    store = CheckpointStore(
        config.work_dir, model_name=config.model_name, world_size=ranks.world_size, exact=config.exact, events=events,
        may_lack=DROPPED[config.keep],
    )  # fmt: skip
    launch = TrainingLaunch(
        config=config, ranks=ranks, stop=stop, events=events, store=store, heartbeat=heartbeat or Heartbeat()
    )
    if ranks.is_first:
        store.clear_unfinished()
    sizes = [len(launch.workload.open_slice(segment.slice_dir)) for segment in config.segments]
    num_steps = [-(-size // config.global_batch_size) for size in sizes]
    events.send(
        "launch_started", cell=config.cell, started_at=format_utc_time(), pid=os.getpid(),
        world_size=ranks.world_size, device=config.device, backend=ranks.backend,
        num_segments=len(config.segments), num_steps=sum(num_steps),
    )  # fmt: skip

    strategy: Strategy | None = None
    stands_after = -1
    """Index of the segment at whose end the strategy's state is; -1: the base model."""
    predecessor: dict[str, Any] = {}
    """segment.json of the segment before."""
    train_seconds = check_seconds = 0.0
    for index, segment in enumerate(config.segments):
        start_checksum = predecessor["parameter_checksums"][0] if predecessor else None
        finished = ranks.ask_first_rank(partial(store.find_finished, segment, start_checksum=start_checksum))
        if finished is not None:
            events.send("segment_reused", **finished)
            _log.info("%s epoch %d: reused, its receipt verifies", segment.range, segment.epoch)
        else:
            if code := ranks.highest(stop.exit_code):
                raise make_stopped_error(code, before_step=sum(num_steps[:index]) + 1)
            strategy = strategy or build_strategy(launch)
            drift: list[str] = []
            if stands_after != index - 1:
                before = config.segments[index - 1]
                drift = store.version_drift(store.locate_finished(before))
                store.load_finished(before, strategy, predecessor)
            record = SegmentRecord(
                segment=segment,
                first_step=sum(num_steps[:index]) + 1,
                num_steps=num_steps[index],
                counters=Counters(started_at=format_utc_time(), start_checksum=""),
                folder=config.work_dir,
                is_first_rank=ranks.is_first,
                earlier_train_seconds=train_seconds,
                earlier_check_seconds=check_seconds,
            )
            source, plan = open_segment(launch.workload, config, segment)
            _warm_up(launch, strategy, source, plan)
            # Only now: a warm-up is to change nothing. What a partial checkpoint holds is loaded after it. Of the state
            # as it is: a gate compares it with what it should be.
            start, counters = strategy.digest(), record.counters
            counters.start_checksum, counters.start_optimizer_checksum = start.parameters[0], start.optimizer[0]
            _resume(launch, strategy, record, version_drift=drift)
            finished = train_segment(launch, strategy, record, source, plan)
            stands_after = index
            if ranks.is_first and index:
                drop_files(store.locate_finished(config.segments[index - 1]), DROPPED[config.keep])
        predecessor = finished
        train_seconds += finished["train_seconds"]
        check_seconds += finished.get("check_seconds", 0.0)  # a segment of an earlier version has none
    events.send("launch_finished", seconds=time.perf_counter() - started)


def train_segment(
    launch: TrainingLaunch, strategy: Strategy, record: SegmentRecord, source: Rows, plan: SegmentPlan
) -> dict[str, Any]:
    """Train one segment from wherever its record stands to its end; return its segment.json."""
    config, ranks, segment, heartbeat = launch.config, launch.ranks, record.segment, launch.heartbeat
    heldout, divergence = Heldout(launch), DivergenceRule()

    def make(segment_step: int) -> list[MicroBatch]:
        run_step = record.first_step + segment_step - 1
        step = plan.step(segment_step)
        return list(
            make_micro_batches(
                source, step, rank=strategy.data_rank, world_size=strategy.data_world_size,
                seq_len=config.seq_len, seed=(config.seed, run_step),
            )
        )  # fmt: skip

    steps = range(record.counters.num_steps + 1, plan.num_steps + 1)
    end = None
    for line in record.earlier_lines:
        divergence.take(line["step"], line["loss"], num_targets=count_targets(line), num_samples=line["num_samples"])
    steps_between_stop_checks, to_run_step = 1, record.first_step - 1
    record.start_span()
    record.mark_exchanges(ranks, num_steps=record.counters.num_steps)
    window = Window(ranks)
    updates = UpdateKeeper(
        config, ranks, strategy, record, pause=window.pause, events=launch.events, heartbeat=heartbeat
    )
    updates.begin(steps.start)
    heartbeat.on_enter = window.pace.enter
    for segment_step, micro_batches, data_wait_seconds in prefetch_micro_batches(
        make, steps, ranks.device, on_wait=lambda segment_step: heartbeat.begin(segment_step + to_run_step)
    ):
        step = segment_step + to_run_step
        planned = plan.step(segment_step)
        learning_rate = compute_rate_in_segment(config, segment, segment_step, num_steps=plan.num_steps)
        is_last = segment_step == plan.num_steps

        with window.time_computation():
            result = strategy.train_step(micro_batches, num_targets=planned.num_targets, learning_rate=learning_rate)

        record.consume(step, strategy.data_rank, micro_batches if strategy.counts_rows else [], result)
        window.add(
            step, result, micro_batches, counts_rows=strategy.counts_rows,
            planned=planned, learning_rate=learning_rate, data_wait_seconds=data_wait_seconds,
        )  # fmt: skip
        is_checkpoint = config.checkpoint_every_steps > 0 and segment_step % config.checkpoint_every_steps == 0
        is_evaluated = heldout.is_due(step)
        is_log_point = is_last or is_checkpoint or is_evaluated or segment_step % config.log_every_steps == 0
        # A step is no log point for being checked: it is to be one like any other. The next one is, which logs both.
        is_log_point |= bool(updates.waiting) or all(map(updates.is_due, (segment_step, segment_step + 1)))
        if not is_log_point and segment_step % steps_between_stop_checks == 0:
            heartbeat.enter(StepSection.COLLECTIVE)
            with window.time_computation():
                is_log_point = ranks.highest(launch.stop.exit_code) > 0
        if not is_log_point:
            updates.end(segment_step)
            updates.begin(segment_step + 1)
            continue

        # ---------------------------------------------------- log point: the clock stands still from here on
        heartbeat.enter(StepSection.COLLECTIVE)
        with _name_culprits(ranks, strategy, micro_batches, step=step, num_targets=planned.num_targets):
            logged = window.close(forgives_overflow=strategy.replica.may_overflow)
        record.mark_exchanges(ranks, num_steps=segment_step)
        other_seconds = record.counters.check_seconds
        # Before anything else is done: what changes the state between two steps belongs to the update of the second,
        # and after the last one to nothing that may be saved.
        updates.end(segment_step)
        updates.replay(logged)
        updates.begin(segment_step + 1)
        end = strategy.digest() if is_last else None
        other_seconds = record.counters.check_seconds - other_seconds
        if is_evaluated:
            logged[-1] = _evaluate(launch, strategy, record, heldout, logged[-1])
        for line in record.add(logged):
            launch.events.send(**line)
            divergence.take(
                line["step"], line["loss"], num_targets=count_targets(line), num_samples=line["num_samples"]
            )
        record.file_away(ranks)
        steps_between_stop_checks = max(1, int(_SECONDS_BETWEEN_STOP_CHECKS / logged[-1].seconds))
        other_seconds += logged[-1].heldout_seconds or 0.0
        record.counters.log_seconds += time.perf_counter() - window.closed_at - other_seconds
        stop_code = ranks.highest(launch.stop.exit_code)
        if not is_last and (is_checkpoint or stop_code):
            _save_partial(launch, strategy, record)
        if not is_last and stop_code:
            raise make_stopped_error(stop_code, before_step=step + 1)
        window.open()
        # ---------------------------------------------------- the clock runs again

    facts_of_segment = _finish(launch, strategy, record, end or strategy.digest())
    heartbeat.rest()
    return facts_of_segment


def _evaluate(
    launch: TrainingLaunch, strategy: Strategy, record: SegmentRecord, heldout: Heldout, fact: StepFacts
) -> StepFacts:
    """Return the step with the loss on the held-out rows after it, while the clock stands still."""
    started = time.perf_counter()
    loss = heldout.compute_loss(strategy, step=fact.step)
    launch.heartbeat.enter(StepSection.COLLECTIVE)
    if (done := fact.step - record.first_step + 1) < record.num_steps:
        # What the evaluation exchanged is not the steps'.
        record.mark_exchanges(launch.ranks, num_steps=done, anew=True)
    seconds = time.perf_counter() - started
    record.counters.heldout_seconds += seconds
    return dataclasses.replace(
        fact, heldout_loss=loss, heldout_rows=launch.config.heldout_digest, heldout_seconds=seconds
    )


def _warm_up(launch: TrainingLaunch, strategy: Strategy, source: Rows, plan: SegmentPlan) -> None:
    """Warm up with the segment's largest micro-batch: if there is too little memory, it shows right away."""
    config, started = launch.config, time.perf_counter()
    largest = plan.step(plan.find_largest_step())
    micro_batch = make_micro_batch(source, largest, 0, seq_len=config.seq_len, seed=(config.seed, 0))
    with explain_failed_compilation():
        strategy.warm_up(micro_batch.to(launch.ranks.device))
    launch.heartbeat.set_patience(
        warm_up_seconds=time.perf_counter() - started, checkpoint_bytes=strategy.num_checkpoint_bytes
    )


@contextlib.contextmanager
def _name_culprits(
    ranks: Ranks, strategy: Strategy, micro_batches: list[MicroBatch], *, step: int, num_targets: int
) -> Iterator[None]:
    """On a gradient that is not finite, name the ranks that it comes from: after the all-reduce all ranks have it.

    Each rank computes its own gradient once more; the step has updated nothing.
    """
    try:
        yield
    except GradientNotFiniteError as error:
        if error.step != step or ranks.world_size == 1:
            raise
        is_finite = strategy.gives_finite_gradient(micro_batches, num_targets=num_targets)
        culprits = np.flatnonzero(ranks.gather(int(not is_finite))).tolist()
        origin = f"rank {', '.join(map(str, culprits))}" if culprits else "the sum, not from any rank alone"
        raise DivergedError(f"{error}; it comes from {origin}") from None


def _resume(launch: TrainingLaunch, strategy: Strategy, record: SegmentRecord, *, version_drift: list[str]) -> None:
    """Restore the segment's newest partial checkpoint, if there is one."""
    store, segment, ranks = launch.store, record.segment, launch.ranks
    checksum = record.counters.start_checksum

    def find_newest() -> str | None:
        folder = store.find_newest_partial(segment, start_checksum=checksum)
        return str(folder.relative_to(launch.config.work_dir)) if folder else None

    if newest := ranks.ask_first_rank(find_newest):
        folder = launch.config.work_dir / newest
        version_drift = store.version_drift(folder)
        store.load_partial(folder, strategy, record)
    setting = gather_setting(launch.config, ranks, strategy.module)
    record.note_launch(
        micro_batch_size=launch.config.micro_batch_size, version_drift=version_drift, setting=setting,
        code_digest=digest_code(),
    )  # fmt: skip
    done = record.counters.num_steps
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


def _save_partial(launch: TrainingLaunch, strategy: Strategy, record: SegmentRecord) -> None:
    ranks, started = launch.ranks, time.perf_counter()
    launch.heartbeat.enter(StepSection.CHECKPOINT)
    record.note_span()
    _note_peak_memory(ranks, record)
    digests = strategy.digest()
    _require_same_state(digests, f"{record.segment.range} epoch {record.segment.epoch}")
    record.file_away(ranks, everything=True)
    launch.store.save_partial(strategy, record, ranks, digests)
    seconds = time.perf_counter() - started
    record.counters.checkpoint_seconds += seconds
    launch.events.send(
        "checkpoint_saved",
        range=record.segment.range,
        epoch=record.segment.epoch,
        step=record.first_step + record.counters.num_steps - 1,
        seconds=seconds,
    )


def _finish(launch: TrainingLaunch, strategy: Strategy, record: SegmentRecord, end: Digests) -> dict[str, Any]:
    """Prove that all copies of the state at its `end` are the same, then save the segment; return its segment.json."""
    ranks, started = launch.ranks, time.perf_counter()
    launch.heartbeat.enter(StepSection.CHECKPOINT)
    _note_peak_memory(ranks, record)
    _require_same_state(end, f"{record.segment.range} epoch {record.segment.epoch}")
    record.file_away(ranks, everything=True)
    # Once more: what the steps changed stays unseen where it is noted before them alone.
    setting, known = gather_setting(launch.config, ranks, strategy.module), record.counters.settings
    known += [setting] * (setting not in known)
    devices = ranks.gather_values(collect_device_facts(ranks.device))
    earlier_seconds = record.counters.checkpoint_seconds

    def summarise() -> SegmentFacts:
        record.counters.checkpoint_seconds = earlier_seconds + time.perf_counter() - started
        record.note_span()
        return record.summary(
            launch.config.cell, ranks, exchange=strategy.describe(), digests=end, rank_devices=devices
        )

    facts = launch.store.save_finished(strategy, record, ranks, summarise)
    launch.events.send("segment_finished", **facts)
    _log.info(
        "%s epoch %d: finished, loss %.4f, %.0f %ss/s",
        record.segment.range, record.segment.epoch, facts["loss"], facts["tokens_per_second"], launch.workload.UNIT,
    )  # fmt: skip
    return facts


def _require_same_state(end: Digests, segment: str) -> None:
    """Raise RanksDisagreeError, on all ranks alike, unless all of them hold the same."""
    for what, result in (("parameters", end.parameters), ("optimizer states", end.optimizer)):
        if len(set(result)) > 1:
            raise RanksDisagreeError(
                f"{segment}: the ranks hold different {what} (sha256 {', '.join(result)}); nothing was saved"
            )


def _note_peak_memory(ranks: Ranks, record: SegmentRecord) -> None:
    if ranks.device.type == "cuda":
        counters, device = record.counters, ranks.device
        peaks = [torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)]
        allocated, reserved = (ranks.gather(peaks).max(axis=0) / 2**30).tolist()
        counters.peak_memory_gib = max(allocated, counters.peak_memory_gib or 0.0)
        counters.peak_reserved_gib = max(reserved, counters.peak_reserved_gib or 0.0)
